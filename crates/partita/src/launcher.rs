//! Other launchers: programs that start the processes of a run and tell each its place in variables of its environment.

use partita_base::{Diagnostic, Result};

/// Tells a process of `partita launch` its place: `<index>/<count>:<folder>`.
pub const LAUNCHED: &str = "PARTITA_LAUNCH";

/// A launcher and its variables.
struct Launcher {
    name: &'static str,
    /// The index of the process; of Ray, whose actors have none, the address of the cluster.
    index: &'static str,
    /// The number of processes, where the launcher tells it.
    count: Option<&'static str>,
}

const RAY: &str = "Ray";

/// The launchers in the order in which they are looked for: those that start processes within another one's allocation
/// come before it, as mpirun under Slurm does.
const LAUNCHERS: &[Launcher] = &[
    Launcher { name: "torchrun", index: "RANK", count: Some("WORLD_SIZE") },
    Launcher { name: "mpirun", index: "OMPI_COMM_WORLD_RANK", count: Some("OMPI_COMM_WORLD_SIZE") },
    Launcher { name: "PMI", index: "PMI_RANK", count: Some("PMI_SIZE") },
    // A batch script that srun has not started has the number of tasks too, and is one process.
    Launcher { name: "srun", index: "SLURM_PROCID", count: Some("SLURM_STEP_NUM_TASKS") },
    Launcher { name: "Kubernetes", index: "JOB_COMPLETION_INDEX", count: None },
    Launcher { name: RAY, index: "RAY_ADDRESS", count: None },
];

/// The place of a process among those that a launcher started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The launcher's name.
    pub launcher: &'static str,
    /// The index of the process, where the launcher tells it.
    pub index: Option<usize>,
    /// The number of processes, where the launcher tells it.
    pub count: Option<usize>,
}

impl Place {
    /// The place that the first launcher with valid variables tells.
    pub fn find(variable: impl Fn(&str) -> Option<String>) -> Option<Place> {
        let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
        LAUNCHERS.iter().find_map(|launcher| {
            if launcher.name == RAY {
                variable(launcher.index)?;
                return Some(Place { launcher: RAY, index: None, count: None });
            }
            let index = number(launcher.index)?;
            let count = match launcher.count {
                Some(count) => Some(number(count).filter(|&count| index < count)?),
                None => None,
            };
            Some(Place { launcher: launcher.name, index: Some(index), count })
        })
    }

    /// E393 in one of several processes, each of which would run all ranks. Processes of `partita launch` share them.
    pub fn check_alone(variable: impl Fn(&str) -> Option<String>) -> Result<()> {
        if variable(LAUNCHED).is_some() {
            return Ok(());
        }
        let Some(place) = Place::find(variable) else { return Ok(()) };
        let Some(count) = place.count.filter(|&count| count > 1) else { return Ok(()) };
        let name = place.launcher;
        Err(Diagnostic::new("E393", format!("{name} started {count} processes, and each would run all ranks"))
            .expected("one process, or those of `partita launch` or `python -m partita.launch`")
            .found(place.to_string())
            .help("run the program once; or share the ranks with `partita launch -n N`, `python -m partita.launch -n N`, or \
                   under mpirun with the command for MPI and `--engine mpi`; `partita.torch.apply` runs a plan on PyTorch's own \
                   runtime"))
    }

    /// The variables that are looked at, in order.
    pub fn variables() -> impl Iterator<Item = &'static str> {
        LAUNCHERS.iter().flat_map(|launcher| std::iter::once(launcher.index).chain(launcher.count))
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.launcher)?;
        self.index.map_or(Ok(()), |index| write!(f, ", process {index}"))?;
        self.count.map_or(Ok(()), |count| write!(f, " of {count}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_processes_that_share_no_ranks_is_refused() {
        for (variables, is_refused) in [
            (&[("RANK", "1"), ("WORLD_SIZE", "2")][..], true),
            (&[("RANK", "0"), ("WORLD_SIZE", "1")], false),
            (&[("WORLD_SIZE", "2")], false),
            (&[("RANK", "1"), ("WORLD_SIZE", "2"), ("PARTITA_LAUNCH", "1/2:/x")], false),
            (&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")], false),
            (&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "4")], true),
            (&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")], true),
        ] {
            let variable = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.to_string())
            };
            let found = Place::check_alone(variable).map_err(|error| error.code);
            assert_eq!(found, if is_refused { Err("E393") } else { Ok(()) }, "{variables:?}");
        }
    }

    #[test]
    fn the_first_launcher_with_valid_variables_is_recognised() {
        let set = |variables: &str| {
            let all: Vec<(String, String)> = variables
                .split_whitespace()
                .filter_map(|pair| pair.split_once('='))
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .collect();
            let place =
                Place::find(|name| all.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone()));
            place.map_or("none".to_string(), |place| place.to_string())
        };
        for (variables, found) in [
            ("", "none"),
            ("RANK=1 WORLD_SIZE=4", "torchrun, process 1 of 4"),
            ("RANK=1", "none"),
            ("RANK=4 WORLD_SIZE=4", "none"),
            ("RANK=-1 WORLD_SIZE=4", "none"),
            ("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4", "mpirun, process 3 of 4"),
            (
                "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4",
                "mpirun, process 3 of 4",
            ),
            ("RANK=one WORLD_SIZE=2 PMI_RANK=1 PMI_SIZE=2", "PMI, process 1 of 2"),
            ("SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8", "srun, process 5 of 8"),
            ("SLURM_PROCID=0 SLURM_NTASKS=8", "none"),
            ("JOB_COMPLETION_INDEX=2", "Kubernetes, process 2"),
            ("RAY_ADDRESS=127.0.0.1:6379", "Ray"),
        ] {
            assert_eq!(set(variables), found, "{variables}");
        }
    }
}
