//! The memory limit of this process, checked before large allocations.
//!
//! A system that runs out of memory kills a process without a message. So the code checks the limit before it
//! allocates, and returns a [`Diagnostic`] if it would be exceeded. By default the limit is a share of the
//! memory of the machine, of the control group or of the address space (`ulimit -v`), whichever is lowest,
//! and at most what is available at the moment. Only Linux reports these figures; elsewhere only a limit in
//! bytes applies, and only to each single request.

use partita_base::{Diagnostic, Result, format_bytes};
use std::fmt;

/// The default limit, as a share of memory.
const DEFAULT_SHARE: f64 = 0.8;

/// The memory limit of this process.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum MemoryLimit {
    /// A share of the memory that the process may have, from 0 to 1, and at most what is available.
    Share(f64),
    /// A number of bytes, whatever the machine has.
    Bytes(u64),
}

impl Default for MemoryLimit {
    fn default() -> Self {
        MemoryLimit::Share(DEFAULT_SHARE)
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLimit::Share(share) => write!(f, "{}%", share * 100.0),
            MemoryLimit::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

impl MemoryLimit {
    /// Parses `80%`, `8G`, `512MiB` or a number of bytes; K, M, G and T are powers of 1024. E041
    /// otherwise.
    pub fn parse(text: &str) -> Result<MemoryLimit> {
        let refused = || {
            Diagnostic::new("E041", format!("`{text}` is not a limit on memory"))
                .expected("a share such as 80%, or bytes such as 8G, 512M or 1073741824")
                .found(text)
        };
        if let Some(percent) = text.trim().strip_suffix('%') {
            let percent: f64 = percent.trim().parse().map_err(|_| refused())?;
            return match percent > 0.0 && percent <= 100.0 {
                true => Ok(MemoryLimit::Share(percent / 100.0)),
                false => Err(refused()),
            };
        }
        let upper = text.trim().to_ascii_uppercase();
        let digits = upper.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let exponent = match upper[digits.len()..].trim_end_matches('B').trim_end_matches('I') {
            "" => 0,
            "K" => 1,
            "M" => 2,
            "G" => 3,
            "T" => 4,
            _ => return Err(refused()),
        };
        let number: f64 = digits.trim().parse().map_err(|_| refused())?;
        let bytes = number * 1024f64.powi(exponent);
        match bytes >= 1.0 && bytes < u64::MAX as f64 {
            true => Ok(MemoryLimit::Bytes(bytes as u64)),
            false => Err(refused()),
        }
    }

    /// E040 if `need` more bytes for `what` would exceed the limit.
    pub fn request(&self, need: u64, what: &str) -> Result<()> {
        self.request_on(&Machine::now(), need, what)
    }

    /// E040 if the limit is already exceeded after `stage`.
    pub fn check(&self, stage: &str) -> Result<()> {
        self.check_on(&Machine::now(), stage)
    }

    /// The limit of the process in bytes, and its origin as text.
    fn most(&self, machine: &Machine) -> Option<(u64, String)> {
        match *self {
            MemoryLimit::Bytes(bytes) => Some((bytes, "the limit".to_string())),
            MemoryLimit::Share(share) => {
                let total = machine.total?;
                let of_total = (total as f64 * share) as u64;
                let now = machine.available.map(|available| machine.resident.unwrap_or(0) + available);
                match now.filter(|now| *now < of_total) {
                    Some(now) => Some((now, "what is available now".to_string())),
                    None => Some((of_total, format!("{self} of {}", format_bytes(total)))),
                }
            }
        }
    }

    fn request_on(&self, machine: &Machine, need: u64, what: &str) -> Result<()> {
        let Some((most, why)) = self.most(machine) else { return Ok(()) };
        let resident = machine.resident.unwrap_or(0);
        if resident.saturating_add(need) <= most {
            return Ok(());
        }
        Err(refusal(format!("there is not enough memory for {what}"))
            .expected(format!(
                "at most {}: {} ({why}), of which {} are in use",
                format_bytes(most.saturating_sub(resident)),
                format_bytes(most),
                format_bytes(resident)
            ))
            .found(format!("{} needed", format_bytes(need))))
    }

    fn check_on(&self, machine: &Machine, stage: &str) -> Result<()> {
        match (self.most(machine), machine.resident) {
            (Some((most, why)), Some(resident)) if resident > most => {
                Err(refusal(format!("memory ran short after {stage}"))
                    .expected(format!("at most {} ({why})", format_bytes(most)))
                    .found(format!("{} in use", format_bytes(resident))))
            }
            _ => Ok(()),
        }
    }
}

/// E040 if the address space of this process is limited (`ulimit -v`), and has fewer bytes left than `what` needs. A process
/// that cannot end with a message where an allocation fails, such as a Python interpreter, checks this before.
pub fn check_address_space(need: u64, what: &str) -> Result<()> {
    match rustix::process::getrlimit(rustix::process::Resource::As).current {
        None => Ok(()),
        Some(_) => MemoryLimit::default().request(need, what),
    }
}

fn refusal(message: String) -> Box<Diagnostic> {
    Diagnostic::new("E040", message).help(
        "use a smaller batch or model, or fewer ranks; --memory-limit BYTES or PERCENT sets another limit",
    )
}

/// The memory of the machine as this process sees it; `None` if the system does not report it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Machine {
    /// The total memory for this process: the machine's, or a lower limit.
    pub total: Option<u64>,
    /// Memory available without taking it from other processes, at most the address space that is left.
    pub available: Option<u64>,
    /// The resident memory of this process.
    pub resident: Option<u64>,
}

impl Machine {
    /// The present state.
    pub fn now() -> Machine {
        Machine::read(&|path| std::fs::read_to_string(path).ok())
    }

    /// Parses the texts of system files.
    fn read(file: &dyn Fn(&str) -> Option<String>) -> Machine {
        let meminfo = file("/proc/meminfo").unwrap_or_default();
        let status = file("/proc/self/status").unwrap_or_default();
        let installed = kibibytes(&meminfo, "MemTotal:");
        let addresses = address_space_limit(file);
        let limits = [group_limit(file), addresses].into_iter().flatten();
        let taken = kibibytes(&status, "VmSize:").unwrap_or(0);
        let left = addresses.map(|limit| limit.saturating_sub(taken));
        Machine {
            total: installed.map(|installed| limits.fold(installed, u64::min)),
            available: kibibytes(&meminfo, "MemAvailable:").into_iter().chain(left).min(),
            resident: kibibytes(&status, "VmRSS:"),
        }
    }
}

/// The bytes of a line such as `MemTotal:  16 kB`.
fn kibibytes(text: &str, label: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(label))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// The lowest limit of the control groups of this process, of either version.
fn group_limit(file: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let mut limits = Vec::new();
    // In a container the group's own folder is often mounted as the root.
    let mut candidates = vec![(String::new(), true), (String::new(), false)];
    for line in file("/proc/self/cgroup").unwrap_or_default().lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let is_second = controllers.is_empty();
        if is_second || controllers.split(',').any(|controller| controller == "memory") {
            let mut path = path.trim_end_matches('/');
            while !path.is_empty() {
                candidates.push((path.to_string(), is_second));
                path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            }
        }
    }
    for (path, is_second) in candidates {
        let name = match is_second {
            true => format!("/sys/fs/cgroup{path}/memory.max"),
            false => format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"),
        };
        // "max" is no limit, and neither are the absurdly large numbers of the first version.
        limits.extend(file(&name).and_then(|text| text.trim().parse::<u64>().ok()));
    }
    limits.into_iter().min()
}

/// `ulimit -v`.
fn address_space_limit(file: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let limits = file("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn machine(total: u64, available: u64, resident: u64) -> Machine {
        Machine { total: Some(total), available: Some(available), resident: Some(resident) }
    }

    #[test]
    fn limits_are_read_as_shares_or_bytes() {
        for (text, limit) in [
            ("80%", MemoryLimit::Share(0.8)),
            (" 12.5 % ", MemoryLimit::Share(0.125)),
            ("100%", MemoryLimit::Share(1.0)),
            ("1024", MemoryLimit::Bytes(1024)),
            ("8G", MemoryLimit::Bytes(8 << 30)),
            ("512MiB", MemoryLimit::Bytes(512 << 20)),
            ("1.5 kb", MemoryLimit::Bytes(1536)),
            ("2T", MemoryLimit::Bytes(2 << 40)),
        ] {
            assert_eq!(MemoryLimit::parse(text).unwrap(), limit, "{text}");
        }
        for text in ["", "0", "0%", "101%", "-1", "nan%", "inf", "8X", "G", "1e30", "half"] {
            assert_eq!(MemoryLimit::parse(text).unwrap_err().code, "E041", "{text}");
        }
    }

    #[test]
    fn a_request_is_refused_exactly_where_it_passes_the_limit() {
        let machine = machine(10 * GIB, 9 * GIB, GIB);
        let share = MemoryLimit::default();
        assert!(share.request_on(&machine, 7 * GIB, "x").is_ok());
        let error = share.request_on(&machine, 7 * GIB + 1, "the memory of 4 ranks").unwrap_err();
        assert_eq!(error.code, "E040");
        let text = error.to_string();
        for part in [
            "not enough memory for the memory of 4 ranks",
            "at most 7.0 GiB: 8.0 GiB (80% of 10.0 GiB), of which 1.0 GiB are in use",
            "found: 7.0 GiB needed",
            "smaller batch",
            "--memory-limit",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        let bytes = MemoryLimit::Bytes(2 * GIB);
        assert!(bytes.request_on(&machine, GIB, "x").is_ok());
        assert!(bytes.request_on(&machine, GIB + 1, "x").unwrap_err().to_string().contains("(the limit)"));
        assert!(share.request_on(&machine, u64::MAX, "x").is_err());
    }

    #[test]
    fn memory_that_others_have_is_not_given_away() {
        // 3 GiB used by this process and 2 GiB free: less than 80 % of 10 GiB.
        let busy = machine(10 * GIB, 2 * GIB, 3 * GIB);
        assert!(MemoryLimit::default().request_on(&busy, 2 * GIB, "x").is_ok());
        let error = MemoryLimit::default().request_on(&busy, 2 * GIB + 1, "x").unwrap_err();
        assert!(error.to_string().contains("5.0 GiB (what is available now)"), "{error}");
        // A limit in bytes is the user's own decision.
        assert!(MemoryLimit::Bytes(9 * GIB).request_on(&busy, 6 * GIB, "x").is_ok());
    }

    #[test]
    fn what_is_in_use_is_held_against_the_limit() {
        let limit = MemoryLimit::Bytes(GIB);
        assert!(limit.check_on(&machine(10 * GIB, GIB, GIB), "x").is_ok());
        let error = limit.check_on(&machine(10 * GIB, GIB, GIB + 1), "partitioning the step").unwrap_err();
        assert_eq!(error.code, "E040");
        assert!(error.to_string().contains("memory ran short after partitioning the step"), "{error}");
    }

    #[test]
    fn a_system_that_tells_nothing_refuses_nothing_but_bytes() {
        let silent = Machine::default();
        assert!(MemoryLimit::default().request_on(&silent, u64::MAX, "x").is_ok());
        assert!(MemoryLimit::default().check_on(&silent, "x").is_ok());
        assert!(MemoryLimit::Bytes(5).request_on(&silent, 6, "x").is_err());
        assert_eq!(Machine::read(&|_| None), silent);
    }

    #[test]
    fn the_lowest_limit_of_the_system_holds() {
        let files = |extra: &[(&'static str, &'static str)]| {
            let mut files = vec![
                ("/proc/meminfo", "MemTotal:       1024 kB\nMemFree: 9 kB\nMemAvailable:    512 kB\n"),
                ("/proc/self/status", "Name:\tpartita\nVmRSS:\t     64 kB\n"),
                (
                    "/proc/self/limits",
                    "Max address space         unlimited            unlimited            bytes\n",
                ),
            ];
            files.splice(0..0, extra.iter().copied());
            move |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| text.to_string())
        };
        let kib = 1024;
        let plain = Machine::read(&files(&[]));
        assert_eq!(plain, machine(1024 * kib, 512 * kib, 64 * kib));
        for extra in [
            // Version 2: of a group above the process's own.
            &[
                ("/proc/self/cgroup", "0::/outer/inner\n"),
                ("/sys/fs/cgroup/outer/inner/memory.max", "max\n"),
                ("/sys/fs/cgroup/outer/memory.max", "262144\n"),
            ][..],
            // A container, whose group is the root.
            &[("/sys/fs/cgroup/memory.max", "262144\n")],
            // Version 1.
            &[
                ("/proc/self/cgroup", "5:cpu,cpuacct:/other\n4:memory:/job\n"),
                ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "262144\n"),
            ],
            // The address space.
            &[(
                "/proc/self/limits",
                "Max address space         262144               unlimited            bytes\n",
            )],
        ] {
            assert_eq!(Machine::read(&files(extra)).total, Some(256 * kib), "{extra:?}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_memory() {
        let now = Machine::now();
        assert!(now.total > now.resident && now.resident > Some(0), "{now:?}");
    }
}
