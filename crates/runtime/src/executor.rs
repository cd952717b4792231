//! The executor: plays the programs of all ranks of one process, step after step, on a few worker threads.
//!
//! A rank is its arena, its compiled kernels and a cursor. Each worker plays a fixed set of ranks in turn, perhaps none:
//! it runs one until a collective is pending, then the next; where none can go on it runs parts of others' kernels, and
//! where there are none it waits until the transport or another worker reports a change. Worker 0 is the calling thread;
//! the others wait for the next step. Who waits looks again and again for a while where each thread has a core, and then
//! sleeps. When a rank fails, for whatever reason, the first diagnostic is kept, the transport is told to fail, and all
//! ranks end.

mod cores;
mod rank;
mod team;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use partita_base::{DType, Diagnostic, Result, did_you_mean};
use partita_comm::SharedMemory;
use partita_ir::TensorType;
use partita_program::{BufferId, Port, ProgramSet};

use crate::collectives::spec;
use crate::cpu::{Cpu, SlowOp};
use crate::memory::MemoryLimit;
use cores::Homes;
pub(crate) use cores::cores;
use rank::{Pulse, Rank};
use team::Team;
use worker::{Control, Shared};

/// How programs are run.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// The device, as lowering saw it.
    pub cpu: Cpu,
    /// Threads in all, as many as there are cores by default. Ranks are dealt to them; who has none, or none that can go
    /// on, helps with the work of others if [`RunnerOptions::sharing`] says so.
    pub workers: Option<usize>,
    /// One thread, which is the calling one.
    pub deterministic: bool,
    /// End the step where a number that it is checked by (the loss, the norm of the gradients) is not finite, before
    /// programs that were lowered with a guard replace parameters and states: they stay those of the step before.
    pub nan_guard: bool,
    /// How long all ranks may stand still before the run is declared stuck.
    pub watchdog: Duration,
    /// How much memory the process takes at most: the arenas of all ranks are held against it before they are allocated.
    pub memory: MemoryLimit,
    /// Measure how long each instruction takes: [`Runner::instruction_nanos`].
    pub profile: bool,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        RunnerOptions {
            cpu: Cpu::default(),
            workers: None,
            deterministic: false,
            nan_guard: true,
            watchdog: Duration::from_secs(120),
            memory: MemoryLimit::default(),
            profile: false,
        }
    }
}

/// How long a thread that waits stays awake, where nobody else needs its core: longer than most waits between and within
/// steps. A core that slept comes back late, above all that of a virtual machine whose host has other work.
pub const AWAKE: Duration = Duration::from_millis(50);

/// The most worker threads of one process: far more than any machine has cores, and few enough for every system.
pub const MOST_WORKERS: usize = 1024;

impl RunnerOptions {
    /// E032 where the number of workers is none that a process can have.
    pub fn check(&self) -> Result<()> {
        match self.workers {
            Some(workers) if !(1..=MOST_WORKERS).contains(&workers) => {
                Err(Diagnostic::new("E032", format!("{workers} worker threads are not possible"))
                    .at("workers")
                    .expected(format!("1 to {MOST_WORKERS} threads in all"))
                    .found(workers.to_string())
                    .help("leave the number out: there is then one thread for each core"))
            }
            _ => Ok(()),
        }
    }

    /// The threads there may be.
    fn threads(&self) -> usize {
        if self.deterministic { 1 } else { self.workers.unwrap_or_else(cores).clamp(1, MOST_WORKERS) }
    }

    /// These options with as many threads for each of `ranks` as there are for all of them. Where every thread has a core,
    /// there are at least two: one whose ranks wait helps another.
    pub fn sharing(mut self, ranks: usize) -> RunnerOptions {
        let threads = self.threads();
        let least = if threads > cores() { 1 } else { threads.min(2) };
        self.cpu.threads = (threads / ranks.max(1)).max(least);
        self
    }
}

/// The code of a step that ended since a number it is checked by is not finite. The state is that of the step before, where
/// its programs were lowered with a guard.
pub const DIVERGED: &str = "E412";

/// Something that goes wrong on purpose, for tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The kernel panics.
    Panic,
    /// The kernel returns an error.
    Error,
    /// The first output is filled with NaN.
    Nan,
    /// The rank never gets past this instruction.
    Hang,
}

/// Runs a program set, one step at a time. State stays in the ranks' arenas between steps.
pub struct Runner {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Runner {
    /// Checks the programs, allocates one arena of exactly the planned size per rank, loads constants, compiles
    /// every compute instruction and starts the workers.
    ///
    /// # Errors
    /// What the static checks find (E401 to E409), or the transport (E440 to E442); E032 where no process can have so many
    /// workers; E040 where the arenas would pass the limit on memory; E416 and E426 where the system has no threads or
    /// no memory.
    pub fn new(set: ProgramSet, options: RunnerOptions) -> Result<Runner> {
        options.check()?;
        partita_program::check(&set)?;
        let set = set.each_rank();
        let rank_count = set.programs.len();
        let arenas: u64 = set.programs.iter().map(|program| program.arena_bytes as u64).sum();
        options.memory.request(arenas, &format!("the planned buffers of all ranks ({rank_count})"))?;
        let transport = SharedMemory::new(rank_count, set.collectives.iter().map(spec).collect())?;
        let places = if options.deterministic { 1 } else { options.cpu.threads.max(1) };
        // Nobody needs more threads than there are places at all ranks together.
        let workers = options.threads().clamp(1, rank_count.max(1) * places);
        let awake = if workers <= cores() { AWAKE } else { Duration::ZERO };
        let rank = |program| Rank::new(&set, program, &options, places, awake).map(Mutex::new);
        let ranks = set.programs.iter().map(rank).collect::<Result<Vec<Mutex<Rank>>>>()?;
        let teams: Vec<Arc<Team>> = ranks.iter().map(|rank| lock(rank).team.clone()).collect();
        let shared = Arc::new(Shared {
            ranks,
            teams,
            idle: AtomicUsize::new(workers.saturating_sub(rank_count)),
            open: AtomicUsize::new(0),
            transport,
            workers,
            homes: Homes::new(workers),
            awake,
            watchdog: options.watchdog,
            pulse: Pulse {
                progress: AtomicU64::new(0),
                positions: (0..rank_count).map(|_| AtomicUsize::new(0)).collect(),
            },
            has_failed: AtomicBool::new(false),
            control: Control::default(),
            failure: Mutex::new(None),
            set,
        });
        // From here on a runner, so that the threads end where one of them cannot be started.
        let mut runner = Runner { shared, threads: Vec::new() };
        for worker in 1..workers {
            let shared = runner.shared.clone();
            runner.spawn(format!("partita worker {worker}"), move || shared.serve(worker))?;
        }
        Ok(runner)
    }

    fn spawn(&mut self, name: String, life: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name(name.clone()).spawn(life).map_err(|error| {
            Diagnostic::new("E416", format!("thread `{name}` could not be started"))
                .found(error.to_string())
                .help("run with fewer workers, or fewer threads for a rank")
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Runs one step on all ranks. Inputs must have been written before.
    ///
    /// # Errors
    /// E410 where a rank panicked, E411 where a kernel refused its data, E412 where a checked output is not finite,
    /// E413 where ranks stand still. The runner is of no use afterwards: later steps return the same.
    pub fn step(&mut self) -> Result<()> {
        self.shared.step()
    }

    /// The programs, one for each rank.
    pub fn programs(&self) -> &ProgramSet {
        &self.shared.set
    }

    /// The number of ranks.
    pub fn rank_count(&self) -> usize {
        self.shared.set.programs.len()
    }

    /// The number of threads in all: those that play ranks, the calling one included, and those that only help.
    pub fn thread_count(&self) -> usize {
        self.threads.len() + 1
    }

    /// Whether the rank has an input of this name.
    pub fn has_input(&self, rank: usize, name: &str) -> bool {
        self.shared.set.programs.get(rank).is_some_and(|program| program.input_named(name).is_some())
    }

    /// Whether the rank has an output of this name.
    pub fn has_output(&self, rank: usize, name: &str) -> bool {
        self.shared.set.programs.get(rank).is_some_and(|program| program.output_named(name).is_some())
    }

    /// The local type of an input.
    ///
    /// # Errors
    /// E414 where there is none of this name.
    pub fn input_type(&self, rank: usize, name: &str) -> Result<&TensorType> {
        let buffer = self.port(rank, name, true)?;
        Ok(&self.shared.set.programs[rank].buffer(buffer).ty)
    }

    /// Writes an input: dense bytes of its local shape, booleans as one byte. Parameters and state are inputs too;
    /// they keep what the steps make of them.
    ///
    /// # Errors
    /// E414 where there is none of this name, E415 where the bytes do not fill it.
    pub fn write_input(&mut self, rank: usize, name: &str, bytes: &[u8]) -> Result<()> {
        let buffer = self.port(rank, name, true)?;
        let ty = &self.shared.set.programs[rank].buffer(buffer).ty;
        if bytes.len() != ty.bytes() {
            return Err(Diagnostic::new("E415", format!("input `{name}` of rank {rank} has another size"))
                .expected(format!("{} bytes, {ty}", ty.bytes()))
                .found(format!("{} bytes", bytes.len())));
        }
        self.rank(rank)?.write(&self.shared.set.programs[rank], buffer, bytes);
        Ok(())
    }

    /// As [`Runner::write_input`] for several ranks at once, each named once: `fill` gets their bytes, in that order.
    ///
    /// # Errors
    /// E414 where there is none of this name.
    pub fn fill_inputs(
        &mut self,
        ranks: &[usize],
        name: &str,
        fill: impl FnOnce(Vec<&mut [u8]>),
    ) -> Result<()> {
        let place = |&rank: &usize| Ok((self.port(rank, name, true)?, rank, self.rank(rank)?));
        let mut places = ranks.iter().map(place).collect::<Result<Vec<_>>>()?;
        let programs = &self.shared.set.programs;
        fill(places.iter_mut().map(|(buffer, rank, guard)| guard.place(&programs[*rank], *buffer)).collect());
        Ok(())
    }

    /// Reads an input's place: after a step, what replaced it.
    ///
    /// # Errors
    /// E414 where there is none of this name.
    pub fn read_input(&self, rank: usize, name: &str) -> Result<Vec<u8>> {
        let buffer = self.port(rank, name, true)?;
        Ok(self.rank(rank)?.read(&self.shared.set.programs[rank], buffer).to_vec())
    }

    /// Reads an output after a step, before the next one.
    ///
    /// # Errors
    /// E414 where there is none of this name.
    pub fn read_output(&self, rank: usize, name: &str) -> Result<Vec<u8>> {
        let buffer = self.port(rank, name, false)?;
        Ok(self.rank(rank)?.read(&self.shared.set.programs[rank], buffer).to_vec())
    }

    /// The first element of a float output, such as the loss.
    ///
    /// # Errors
    /// E414 where there is none of this name.
    pub fn read_number(&self, rank: usize, name: &str) -> Result<f64> {
        let buffer = self.port(rank, name, false)?;
        let program = &self.shared.set.programs[rank];
        let dtype: DType = program.buffer(buffer).ty.dtype;
        let guard = self.rank(rank)?;
        let bytes = guard.read(program, buffer);
        Ok(bytes
            .get(..dtype.size_bytes())
            .map_or(0.0, |first| partita_kernels::Scalar::from_bytes(dtype, first).to_f64()))
    }

    /// Bytes of each rank's arena as planned at compile time.
    pub fn planned_bytes(&self) -> Vec<usize> {
        self.shared.set.programs.iter().map(|program| program.arena_bytes).collect()
    }

    /// The end of the highest bytes that instructions, constants and inputs of each rank have touched so far. More
    /// than planned only where a kernel needed scratch memory that lowering did not reserve.
    pub fn peak_bytes_used(&self) -> Vec<usize> {
        (0..self.rank_count()).map(|rank| self.rank(rank).map_or(0, |rank| rank.high_water_bytes)).collect()
    }

    /// Nanoseconds that threads have spent in each instruction of a rank's program so far, over all steps: the one that plays
    /// the rank, and those that help. Empty unless [`RunnerOptions::profile`] is set. A wait counts the work its rank does
    /// in it, for itself and for others, not the time it sleeps.
    ///
    /// # Errors
    /// E417 where a worker never came back with the rank.
    pub fn instruction_nanos(&self, rank: usize) -> Result<Vec<u64>> {
        Ok(self.rank(rank)?.team.body.clock.nanos())
    }

    /// The ops that run on the interpreter, most frequent first.
    pub fn slow_ops(&self) -> Vec<SlowOp> {
        let mut ops: Vec<SlowOp> = Vec::new();
        for rank in 0..self.rank_count() {
            let Ok(rank) = self.rank(rank) else { continue };
            for (op, path) in &rank.slow {
                match ops.iter_mut().find(|known| &known.op == op) {
                    Some(known) => known.count += 1,
                    None => ops.push(SlowOp { op: op.clone(), path: path.clone(), count: 1 }),
                }
            }
        }
        ops.sort_by_key(|op| std::cmp::Reverse(op.count));
        ops
    }

    /// Makes something go wrong at an instruction of a rank, at the next step. For tests.
    #[doc(hidden)]
    pub fn inject(&mut self, rank: usize, instruction: usize, fault: Fault) {
        lock(&self.shared.ranks[rank]).fault = Some((instruction, fault));
    }

    fn port(&self, rank: usize, name: &str, is_input: bool) -> Result<BufferId> {
        let program = self.shared.set.programs.get(rank).ok_or_else(|| {
            Diagnostic::new("E414", format!("there is no rank {rank}"))
                .expected(format!("a rank below {}", self.rank_count()))
        })?;
        let ports: &[Port] = if is_input { &program.inputs } else { &program.outputs };
        let kind = if is_input { "input" } else { "output" };
        ports.iter().find(|port| port.name == name).map(|port| port.buffer).ok_or_else(|| {
            let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
            let error = Diagnostic::new("E414", format!("rank {rank} has no {kind} `{name}`"));
            match did_you_mean(name, names) {
                Some(help) => error.help(help),
                None => error,
            }
        })
    }

    /// A rank between steps. E417 where a worker never came back with it.
    fn rank(&self, rank: usize) -> Result<MutexGuard<'_, Rank>> {
        match self.shared.ranks[rank].try_lock() {
            Ok(guard) => Ok(guard),
            Err(std::sync::TryLockError::Poisoned(error)) => Ok(error.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => {
                Err(Diagnostic::new("E417", format!("rank {rank} is still busy with a failed step")))
            }
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.shared.stop();
        // A worker that hangs in a kernel keeps what it needs alive; waiting for it would hang as well.
        if !self.shared.has_stragglers() {
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }
}

/// A lock whose holder may have panicked: what it guards is only used to report that.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_ir::{ClassGraph, GraphBuilder, Role};
    use partita_program::{LowerOptions, lower};
    use std::sync::atomic::Ordering;

    #[test]
    fn who_has_no_rank_is_idle_from_the_first_instruction_on() {
        let mut b = GraphBuilder::new("doubled");
        let x = b.input("x", TensorType::new(DType::F32, [4]), Role::Activation);
        let sum = b.add(x, x).unwrap();
        let graph = b.finish(vec![sum]);
        for (ranks, workers, idle) in [(1, 1, 0), (1, 3, 2), (2, 2, 0), (2, 3, 1), (3, 2, 0)] {
            let cpu = Cpu { threads: 3, ..Cpu::default() };
            let set =
                lower(&ClassGraph::each(vec![graph.clone(); ranks]), &LowerOptions::default(), &cpu).unwrap();
            let options = RunnerOptions { cpu, workers: Some(workers), ..RunnerOptions::default() };
            let mut runner = Runner::new(set, options).unwrap();
            for _ in 0..3 {
                let found = runner.shared.idle.load(Ordering::SeqCst);
                assert_eq!(found, idle, "{workers} workers for {ranks} ranks, before a step");
                runner.step().unwrap();
            }
        }
    }
}
