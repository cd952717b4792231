//! The choice of a timetable: by name, or a table from a file.

use crate::Timetable;
use crate::timetables::{self, Named};
use partita_base::{Diagnostic, Result};
use std::path::Path;

/// The order in which pipeline stages work on microbatches.
#[derive(Clone, Debug)]
pub enum Order {
    /// A named timetable, which exists for any number of slices and microbatches.
    Named(&'static Named),
    /// A named timetable with another number of stages on each slice, by its name with that number: `interleaved-1f1b:4`.
    Looped(String, &'static Named, usize),
    /// A table for one number of slices and microbatches, with its name: a file.
    Given(String, Timetable),
}

impl Default for Order {
    /// 1F1B.
    fn default() -> Order {
        Order::Named(&timetables::ALL[0])
    }
}

impl PartialEq for Order {
    fn eq(&self, other: &Order) -> bool {
        match (self, other) {
            (Order::Named(one), Order::Named(other)) => one.name == other.name,
            (Order::Looped(one, ..), Order::Looped(other, ..)) => one == other,
            (Order::Given(_, one), Order::Given(_, other)) => one == other,
            _ => false,
        }
    }
}

impl Order {
    /// The named timetable, with any of its names, and behind a colon the number of stages on each slice where it exists for
    /// any: `interleaved-1f1b:4`. E462 if there is none.
    pub fn named(name: &str) -> Result<Order> {
        match timetables::with_chunks(name)? {
            None => timetables::find(name).map(Order::Named),
            Some((named, chunks)) if chunks == named.chunks => Ok(Order::Named(named)),
            Some((named, chunks)) => Ok(Order::Looped(format!("{}:{chunks}", named.name), named, chunks)),
        }
    }

    /// How many stages each of so many slices runs.
    pub fn chunks(&self, slices: usize) -> usize {
        match self {
            Order::Named(named) => named.chunks,
            Order::Looped(_, _, chunks) => *chunks,
            Order::Given(_, timetable) => timetable.stages / slices.max(1),
        }
    }

    /// A user's table in the CSV format of torch.distributed.pipelining; `origin` is what messages call it.
    ///
    /// # Errors
    /// As [`Timetable::from_csv`].
    pub fn from_csv(text: &str, origin: &str) -> Result<Order> {
        let timetable = Timetable::from_csv(text).map_err(|error| {
            let place = error.at.clone().map_or(origin.to_string(), |at| format!("{origin}: {at}"));
            error.at(place)
        })?;
        Ok(Order::Given(origin.to_string(), timetable))
    }

    /// A timetable by its name, or from a CSV file.
    ///
    /// # Errors
    /// E462 if it does not exist, E005 for a file that cannot be read, and those of [`Timetable::from_csv`].
    pub fn open(name: &str) -> Result<Order> {
        if !name.to_lowercase().ends_with(".csv") && !Path::new(name).is_dir() {
            return Order::named(name);
        }
        let text = partita_base::read_text(name).map_err(|error| {
            Diagnostic::new("E005", format!("the timetable `{name}` cannot be read"))
                .expected("the name of a timetable, or a CSV file")
                .found(error.to_string())
        })?;
        Order::from_csv(&text, name)
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        match self {
            Order::Named(named) => named.name,
            Order::Looped(name, ..) | Order::Given(name, _) => name,
        }
    }

    /// The slice that runs each stage on so many slices.
    ///
    /// # Errors
    /// E463 if the table is for another number of slices.
    pub fn slice_of_stage(&self, slices: usize) -> Result<Vec<usize>> {
        match self {
            Order::Named(named) | Order::Looped(_, named, _) => {
                let stages = slices * self.chunks(slices);
                Ok((0..stages).map(|stage| named.placement.slice(stage, slices)).collect())
            }
            Order::Given(_, timetable) if timetable.slices.len() == slices => Ok(timetable.slice_of_stage()),
            Order::Given(name, timetable) => Err(Diagnostic::new(
                "E463",
                "the timetable and the mesh disagree on the number of pipeline slices",
            )
            .at(name.clone())
            .expected(format!("{slices} rows: one for each slice of the mesh"))
            .found(format!("{} rows", timetable.slices.len()))),
        }
    }

    /// The timetable of a training step with so many slices and microbatches.
    ///
    /// # Errors
    /// E461 for more than 16 million tasks, E463 if the table is for other numbers, E462 if it has no backward pass.
    pub fn timetable(&self, slices: usize, microbatches: usize) -> Result<Timetable> {
        let stages = self.slice_of_stage(slices)?.len();
        // Some orders are made for whole rounds, of as many microbatches as there are slices.
        let tasks = stages.saturating_mul(microbatches.max(slices)).saturating_mul(TASKS_OF_A_STAGE);
        if tasks > MAX_TASKS {
            return Err(Diagnostic::new("E461", "the timetable has too many tasks")
                .at(self.name())
                .expected(format!("at most {MAX_TASKS} tasks"))
                .found(format!("{tasks}, of {stages} stages and {microbatches} microbatches"))
                .help("use fewer pipeline stages or microbatches"));
        }
        let timetable = match self {
            Order::Looped(_, Named { with_chunks: Some(make), .. }, chunks) => {
                make(slices, *chunks, microbatches)
            }
            Order::Named(named) | Order::Looped(_, named, _) => (named.make)(slices, microbatches),
            Order::Given(_, timetable) => timetable.clone(),
        };
        if timetable.microbatches != microbatches {
            return Err(Diagnostic::new(
                "E463",
                "the timetable and the step disagree on the number of microbatches",
            )
            .at(self.name())
            .expected(format!("tasks for {microbatches} microbatches"))
            .found(format!("{} microbatches", timetable.microbatches))
            .help(format!("use `--microbatches {}`", timetable.microbatches)));
        }
        if !timetable.trains() {
            return Err(Diagnostic::new("E462", format!("the timetable `{}` does not train", self.name()))
                .at("train.timetable")
                .expected("a timetable with backward tasks, such as `1f1b`"));
        }
        Ok(timetable)
    }

    /// The timetable of forward passes, the stages on the same slices.
    ///
    /// # Errors
    /// As [`Order::slice_of_stage`].
    pub fn forward(&self, slices: usize, microbatches: usize) -> Result<Timetable> {
        Ok(timetables::forward(&self.slice_of_stage(slices)?, slices, microbatches))
    }
}

/// The most tasks of a timetable: with more, planning would take gigabytes.
const MAX_TASKS: usize = 1 << 24;

/// The most tasks of a stage for each microbatch: forward, and the two parts of a split backward pass.
const TASKS_OF_A_STAGE: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timetable_that_would_take_gigabytes_is_refused() {
        let order = Order::named("1f1b").unwrap();
        assert!(order.timetable(64, 4096).is_ok());
        for (slices, microbatches) in [(65_536, 4), (4, 1 << 40), (2, usize::MAX)] {
            let error = order.timetable(slices, microbatches).unwrap_err();
            assert_eq!(error.code, "E461", "{slices} slices, {microbatches} microbatches");
        }
    }

    #[test]
    fn a_forward_pass_keeps_the_slices_of_the_stages() {
        for named in timetables::ALL {
            let order = Order::Named(named);
            let forward = order.forward(3, 1).unwrap();
            assert_eq!(forward.slice_of_stage(), (named.make)(3, 4).slice_of_stage(), "{}", named.name);
            assert_eq!(forward.slots().unwrap().iter().flatten().count(), 3 * named.chunks);
        }
    }

    #[test]
    fn a_name_may_say_how_many_stages_a_slice_runs() {
        let order = Order::named("Interleaved1F1B:3").unwrap();
        assert_eq!((order.name(), order.chunks(4)), ("interleaved-1f1b:3", 3));
        let timetable = order.timetable(4, 8).unwrap();
        assert_eq!(timetable.stages, 12);
        assert_eq!(timetable.slice_of_stage(), order.slice_of_stage(4).unwrap());
        assert_eq!(timetable.slices, timetables::interleaved_1f1b(4, 3, 8).slices);
        assert_eq!(Order::named("interleaved-1f1b:2").unwrap(), Order::named("interleaved-1f1b").unwrap());
        for name in
            ["1f1b:2", "zbv:4", "interleaved-1f1b:0", "interleaved-1f1b:65", "looped-bfs:x", "other:2"]
        {
            assert_eq!(Order::named(name).unwrap_err().code, "E462", "{name}");
        }
    }

    #[test]
    fn a_table_is_for_its_own_numbers() {
        let order = Order::from_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", "own.csv").unwrap();
        assert_eq!(order.timetable(2, 2).unwrap().slice_of_stage(), [0, 1]);
        assert_eq!(order.timetable(3, 2).unwrap_err().code, "E463");
        assert_eq!(order.timetable(2, 4).unwrap_err().code, "E463");
        assert_eq!(Order::named("inference").unwrap().timetable(2, 2).unwrap_err().code, "E462");
        let error = Order::from_csv("0F0,0X0\n", "own.csv").unwrap_err();
        assert!(error.at.as_deref().unwrap().starts_with("own.csv"), "{error}");
    }
}
