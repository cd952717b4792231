//! The executor: runs the programs of all local ranks on a fixed pool of worker threads, step after
//! step.
//!
//! A rank is its arena, its compiled kernels and a cursor. Each worker owns a fixed set of ranks,
//! possibly none. It runs one rank until a collective is pending, then the next. If all its ranks
//! are blocked it steals parts of other ranks' kernels; if there are none it waits until the
//! transport or another worker reports a change. Worker 0 is the calling thread; the others wait
//! for the next step. A waiting thread spins for a while if each thread has a core, and then
//! sleeps. When a rank fails for any reason, the first diagnostic is kept, the transport is failed,
//! and all ranks end. After a step whose numbers were not finite, the next step begins on a new
//! world; every other failure is final.

mod cores;
mod lent;
mod pause;
mod rank;
mod recorder;
mod team;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use partita_base::{DType, Diagnostic, Result, did_you_mean};
use partita_comm::{Processes, World};
use partita_ir::TensorType;
use partita_program::{BufferId, CollectiveMatmul, Event, Port, Program, ProgramSet};

use crate::collectives::collective_specs;
use crate::cpu::{Cpu, SlowOp};
use crate::memory::MemoryLimit;
use cores::HomeCores;
pub(crate) use cores::cores;
pub use lent::Lent;
use rank::{Rank, RankProgress};
use recorder::Recorder;
use team::Team;
use worker::{Control, Shared};

/// Options of a runner.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// The device that programs were lowered for.
    pub cpu: Cpu,
    /// The number of threads, by default the number of cores. Ranks are distributed over them; a
    /// thread without a runnable rank steals work from others, if [`RunnerOptions::sharing`]
    /// allowed several threads per rank.
    pub workers: Option<usize>,
    /// Use one thread, the calling one.
    pub deterministic: bool,
    /// End the step if a number that it is checked by (the loss, the norm of the gradients) is not
    /// finite, before programs that were lowered with a guard replace parameters and states: they
    /// keep their values from the step before.
    pub nan_guard: bool,
    /// See [`partita_program::LowerOptions::kept_bytes`].
    pub kept_bytes: Option<usize>,
    /// See [`partita_program::LowerOptions::collective_matmul`].
    pub collective_matmul: CollectiveMatmul,
    /// Watchdog: how long all ranks of this process may make no progress before the run fails as stuck.
    pub watchdog: Duration,
    /// The memory limit of the process: the arenas of all ranks are checked against it before they
    /// are allocated.
    pub memory: MemoryLimit,
    /// Record events of each thread for each instruction: [`Runner::events`],
    /// [`Runner::instruction_nanos`].
    pub record: bool,
    /// The processes that share the ranks; without them this process runs all.
    pub processes: Option<Arc<dyn Processes>>,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        RunnerOptions {
            cpu: Cpu::default(),
            workers: None,
            deterministic: false,
            nan_guard: true,
            kept_bytes: None,
            collective_matmul: CollectiveMatmul::Off,
            watchdog: Duration::from_secs(120),
            memory: MemoryLimit::default(),
            record: false,
            processes: None,
        }
    }
}

/// How long a waiting thread spins before it sleeps, if no other thread needs its core: longer than
/// most waits within and between steps. A core wakes up slowly, above all in a virtual machine
/// whose host is busy.
pub const AWAKE: Duration = Duration::from_millis(50);

/// The most worker threads of one process: far more than any machine has cores, and few enough for
/// every system.
pub const MAX_WORKERS: usize = 1024;

impl RunnerOptions {
    /// E032 if no process can have this number of workers.
    pub fn check(&self) -> Result<()> {
        match self.workers {
            Some(workers) if !(1..=MAX_WORKERS).contains(&workers) => {
                Err(Diagnostic::new("E032", format!("{workers} worker threads are not possible"))
                    .at("workers")
                    .expected(format!("1 to {MAX_WORKERS} threads in all"))
                    .found(workers.to_string())
                    .help("leave the number out for one thread per core"))
            }
            _ => Ok(()),
        }
    }

    /// The world for programs that run with these options.
    ///
    /// # Errors
    /// E440 to E442 for collectives that no transport can run, E448 if the processes cannot join.
    pub fn world(&self, programs: &ProgramSet) -> Result<World> {
        let rank_count = programs.rank_count();
        let own = match &self.processes {
            Some(processes) => processes.ranks(processes.index(), rank_count),
            None => 0..rank_count,
        };
        // What the ranks hold is many times what their exchanges need, and known before these are divided.
        self.request(programs, &own.collect::<Vec<usize>>())?;
        let collectives = collective_specs(programs);
        match &self.processes {
            Some(processes) => processes.world(rank_count, collectives),
            None => World::in_process(rank_count, collectives),
        }
    }

    /// E040 if the arenas of these ranks would exceed the memory limit.
    fn request(&self, programs: &ProgramSet, ranks: &[usize]) -> Result<()> {
        let bytes = |&rank: &usize| programs.class_of(rank).map(|program| program.arena_bytes as u64);
        let arenas = ranks.iter().filter_map(bytes).fold(0, u64::saturating_add);
        let whose =
            if ranks.len() == programs.rank_count() { "all ranks" } else { "the ranks of this process" };
        self.memory.request(arenas, &format!("the planned buffers of {whose} ({})", ranks.len()))
    }

    /// The maximum number of threads.
    fn threads(&self) -> usize {
        if self.deterministic { 1 } else { self.workers.unwrap_or_else(cores).clamp(1, MAX_WORKERS) }
    }

    /// Sets the threads per rank: all threads divided by the number of `ranks`. If every thread has
    /// a core, a rank gets at least two, so that a thread whose ranks wait can help another.
    pub fn sharing(mut self, ranks: usize) -> RunnerOptions {
        let threads = self.threads();
        let least = if threads > cores() { 1 } else { threads.min(2) };
        self.cpu.threads = (threads / ranks.max(1)).max(least);
        self
    }
}

/// The code of a step that ended because a number it is checked by is not finite. The state is that
/// of the step before, if the programs were lowered with a guard.
pub const DIVERGED: &str = "E412";

/// The code of a step that ended because another rank failed, which reports the cause.
pub const PEER_FAILED: &str = "E418";

/// An injected fault, for tests.
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
    /// The world of the current step, as the workers have it.
    world: Arc<World>,
    threads: Vec<JoinHandle<()>>,
    /// The events of the last step.
    events: Vec<Event>,
    /// Per local rank and instruction, over all steps.
    nanos: Vec<Vec<u64>>,
    /// Whether the ranks are at the pause of a step.
    is_paused: bool,
}

impl Runner {
    /// Checks the programs. For each local rank of the world, it allocates an arena of exactly the
    /// planned size, loads constants and compiles every compute instruction. Then it starts the
    /// workers. The world's transport must have the [`collective_specs`] of the programs.
    ///
    /// # Errors
    /// Errors of the static checks (E401 to E409); E445 if the world does not fit the programs;
    /// E032 if no process can have this many workers; E040 if the arenas would exceed the memory
    /// limit; E416 and E426 if the system has no threads or no memory.
    pub fn new(set: ProgramSet, world: World, options: RunnerOptions) -> Result<Runner> {
        options.check()?;
        partita_program::check(&set)?;
        fits(&set, &world)?;
        let programs: Vec<Program> =
            world.local_ranks().iter().filter_map(|&rank| set.program(rank)).collect();
        let rank_count = programs.len();
        options.request(&set, world.local_ranks())?;
        let places = if options.deterministic { 1 } else { options.cpu.threads.max(1) };
        // More threads than places at all ranks together would be idle.
        let workers = options.threads().clamp(1, rank_count.max(1) * places);
        let awake = if workers <= cores() { AWAKE } else { Duration::ZERO };
        let rank = |program| Rank::new(&set, program, &options, places, awake).map(Mutex::new);
        let ranks = programs.iter().map(rank).collect::<Result<Vec<Mutex<Rank>>>>()?;
        let teams: Vec<Arc<Team>> = ranks.iter().map(|rank| lock(rank).team.clone()).collect();
        let world = Arc::new(world);
        let shared = Arc::new(Shared {
            ranks,
            teams,
            idle: AtomicUsize::new(workers.saturating_sub(rank_count)),
            open: AtomicUsize::new(0),
            workers,
            home_cores: HomeCores::new(workers),
            awake,
            watchdog: options.watchdog,
            progress: RankProgress { done: AtomicU64::new(0), is_stopped: AtomicBool::new(false) },
            recorder: Recorder::new(workers, options.record),
            has_failed: AtomicBool::new(false),
            control: Control::default(),
            failure: Mutex::new(None),
            set,
            world: Mutex::new(world.clone()),
            programs,
        });
        // From here on a runner, so that the threads end if one of them cannot be started.
        let nanos = vec![Vec::new(); shared.programs.len()];
        let (threads, events) = (Vec::new(), Vec::new());
        let mut runner = Runner { shared, world, threads, events, nanos, is_paused: false };
        runner.record(options.record);
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

    /// Runs one step on the local ranks, together with those of other processes, or the rest of a
    /// step that paused. Inputs must have been written before.
    ///
    /// # Errors
    /// E410 if a rank panicked, E411 if a kernel rejected its data, E412 if a checked output is not
    /// finite, E413 if ranks make no progress, E418 if a rank of another process failed, E427 if it
    /// was [interrupted](Runner::interrupter), E428 if it pauses and did not run to its pause.
    ///
    /// After E412 the next step runs as if the refused one had not been tried, if the programs were lowered with a guard;
    /// its inputs must be written again. After any other error the runner is unusable: later steps return that error.
    pub fn step(&mut self) -> Result<()> {
        self.runs_whole()?;
        self.is_paused = false;
        self.advance(false)
    }

    /// Prepares the step after one that was refused. Every process of the world does so at the same point of the run:
    /// each of them refused the step, for all ranks check the same numbers before anything is replaced.
    fn recover(&mut self) -> Result<()> {
        match self.shared.failed() {
            Err(failure) if failure.code == DIVERGED => {
                let Some(world) = self.world.renewed()?.map(Arc::new) else { return Err(failure) };
                self.shared.restart(world.clone())?;
                self.world = world;
                self.is_paused = false;
                Ok(())
            }
            outcome => outcome,
        }
    }

    fn advance(&mut self, to_pause: bool) -> Result<()> {
        self.recover()?;
        let outcome = self.shared.step(to_pause);
        if self.shared.recorder.is_on() {
            self.events = self.shared.recorder.take();
            for event in &self.events {
                if let Some(local) = self.world.position(event.rank) {
                    self.nanos[local][event.instruction] += event.nanos();
                }
            }
        }
        outcome
    }

    /// Turns the recording of events on or off, from the next step on.
    pub fn record(&mut self, is_on: bool) {
        self.shared.recorder.turn(is_on);
        self.events.clear();
        if is_on {
            for (nanos, program) in self.nanos.iter_mut().zip(&self.shared.programs) {
                nanos.resize(program.instructions.len(), 0);
            }
        }
    }

    /// Nanoseconds on the clock of the [events](Runner::events).
    pub fn now_ns(&self) -> u64 {
        self.shared.recorder.now_ns()
    }

    /// What ends a step from another thread.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter { shared: self.shared.clone() }
    }

    /// The events of the last step: thread by thread, each in its own order. Empty unless they are
    /// [recorded](Runner::record).
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The programs of all ranks, as given.
    pub fn program_set(&self) -> &ProgramSet {
        &self.shared.set
    }

    /// The programs of the local ranks, in their order.
    pub fn programs(&self) -> &[Program] {
        &self.shared.programs
    }

    /// The world: which ranks are local, and the control channel to the processes of the others.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The ranks that this runner runs, ascending. Methods that take a rank return E446 for another
    /// one.
    pub fn local_ranks(&self) -> &[usize] {
        self.world.local_ranks()
    }

    /// The number of ranks, over all processes.
    pub fn rank_count(&self) -> usize {
        self.world.rank_count()
    }

    /// The number of threads: those that run ranks, the calling one included, and those that only
    /// help.
    pub fn thread_count(&self) -> usize {
        self.threads.len() + 1
    }

    /// Whether the rank, local or not, has an input of this name.
    pub fn has_input(&self, rank: usize, name: &str) -> bool {
        self.shared.set.class_of(rank).is_some_and(|program| program.input_named(name).is_some())
    }

    /// Whether the rank, local or not, has an output of this name.
    pub fn has_output(&self, rank: usize, name: &str) -> bool {
        self.shared.set.class_of(rank).is_some_and(|program| program.output_named(name).is_some())
    }

    /// The type of an input on a rank, local or not.
    ///
    /// # Errors
    /// E414 for an unknown name.
    pub fn input_type(&self, rank: usize, name: &str) -> Result<&TensorType> {
        let program = self.class(rank)?;
        Ok(&program.buffer(port(program, rank, name, true)?).ty)
    }

    /// Writes an input: dense bytes of its local shape, booleans as one byte. Parameters and state
    /// are inputs too; steps update them in place.
    ///
    /// # Errors
    /// E414 for an unknown name, E415 if the number of bytes does not fit.
    pub fn write_input(&mut self, rank: usize, name: &str, bytes: &[u8]) -> Result<()> {
        let (program, buffer, mut guard) = self.place(rank, name, true)?;
        let ty = &program.buffer(buffer).ty;
        if bytes.len() != ty.bytes() {
            return Err(Diagnostic::new("E415", format!("input `{name}` of rank {rank} has another size"))
                .expected(format!("{} bytes, {ty}", ty.bytes()))
                .found(format!("{} bytes", bytes.len())));
        }
        guard.write(program, buffer, bytes);
        Ok(())
    }

    /// [`Runner::write_input`] for several ranks at once, each named once: `fill` gets their bytes,
    /// in that order.
    ///
    /// # Errors
    /// E414 for an unknown name, and those of `fill`.
    pub fn fill_inputs(
        &mut self,
        ranks: &[usize],
        name: &str,
        fill: impl FnOnce(Vec<&mut [u8]>) -> Result<()>,
    ) -> Result<()> {
        let places = ranks.iter().map(|&rank| self.place(rank, name, true));
        let mut places = places.collect::<Result<Vec<_>>>()?;
        fill(places.iter_mut().map(|(program, buffer, guard)| guard.place(program, *buffer)).collect())
    }

    /// Reads an input; after a step, the value that replaced it.
    ///
    /// # Errors
    /// E414 for an unknown name.
    pub fn read_input(&self, rank: usize, name: &str) -> Result<Vec<u8>> {
        let (program, buffer, guard) = self.place(rank, name, true)?;
        Ok(guard.read(program, buffer).to_vec())
    }

    /// Reads an output after a step, before the next one.
    ///
    /// # Errors
    /// E414 for an unknown name.
    pub fn read_output(&self, rank: usize, name: &str) -> Result<Vec<u8>> {
        let (program, buffer, guard) = self.place(rank, name, false)?;
        Ok(guard.read(program, buffer).to_vec())
    }

    /// The first element of a float output, such as the loss.
    ///
    /// # Errors
    /// E414 for an unknown name.
    pub fn read_number(&self, rank: usize, name: &str) -> Result<f64> {
        let (program, buffer, guard) = self.place(rank, name, false)?;
        let dtype: DType = program.buffer(buffer).ty.dtype;
        let bytes = guard.read(program, buffer);
        Ok(bytes
            .get(..dtype.size_bytes())
            .map_or(0.0, |first| partita_kernels::Scalar::from_bytes(dtype, first).to_f64()))
    }

    /// Bytes of each local rank's arena as planned at compile time.
    pub fn planned_bytes(&self) -> Vec<usize> {
        self.shared.programs.iter().map(|program| program.arena_bytes).collect()
    }

    /// The highest byte that instructions, constants and inputs of each local rank have used so
    /// far. It exceeds the plan only if a kernel needed scratch memory that lowering did not
    /// reserve.
    pub fn peak_bytes_used(&self) -> Vec<usize> {
        let used = |&rank: &usize| self.rank(rank).map_or(0, |rank| rank.high_water_bytes);
        self.local_ranks().iter().map(used).collect()
    }

    /// Nanoseconds that threads have spent in each instruction of a rank's program, summed over all
    /// steps and over the thread that runs the rank and its helpers (the durations of its
    /// [events](Runner::events)). Empty unless they are recorded. A wait counts the
    /// work that its rank does in it, for itself and for others, but not sleep.
    ///
    /// # Errors
    /// E414 for an unknown rank, E446 if another process runs it.
    pub fn instruction_nanos(&self, rank: usize) -> Result<&[u64]> {
        Ok(&self.nanos[self.position(rank)?])
    }

    /// The ops that run on the interpreter on local ranks, most frequent first.
    pub fn slow_ops(&self) -> Vec<SlowOp> {
        let mut ops: Vec<SlowOp> = Vec::new();
        for &rank in self.local_ranks() {
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

    /// Injects a fault at an instruction of a rank, in the next step. For tests.
    #[doc(hidden)]
    pub fn inject(&mut self, rank: usize, instruction: usize, fault: Fault) -> Result<()> {
        self.rank(rank)?.fault = Some((instruction, fault));
        Ok(())
    }

    /// E414 for an unknown rank.
    fn class(&self, rank: usize) -> Result<&Program> {
        self.shared.set.class_of(rank).ok_or_else(|| {
            Diagnostic::new("E414", format!("there is no rank {rank}"))
                .expected(format!("a rank below {}", self.rank_count()))
        })
    }

    /// The program of a local rank, the buffer of an input or output, and the rank.
    fn place(
        &self,
        rank: usize,
        name: &str,
        is_input: bool,
    ) -> Result<(&Program, BufferId, MutexGuard<'_, Rank>)> {
        let program = &self.shared.programs[self.position(rank)?];
        Ok((program, port(program, rank, name, is_input)?, self.rank(rank)?))
    }

    /// The position of a rank among the local ones: E414 for an unknown rank, E446 if another
    /// process runs it.
    fn position(&self, rank: usize) -> Result<usize> {
        self.class(rank)?;
        self.world.position(rank).ok_or_else(|| {
            Diagnostic::new("E446", format!("another process runs rank {rank}"))
                .expected(format!("one of the ranks of this process: {:?}", self.local_ranks()))
                .help("read it in that process, or gather over the world")
        })
    }

    /// A local rank between steps. E417 if a worker still holds it after a failed step.
    fn rank(&self, rank: usize) -> Result<MutexGuard<'_, Rank>> {
        match self.shared.ranks[self.position(rank)?].try_lock() {
            Ok(guard) => Ok(guard),
            Err(std::sync::TryLockError::Poisoned(error)) => Ok(error.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => {
                Err(Diagnostic::new("E417", format!("rank {rank} is still busy with a failed step")))
            }
        }
    }
}

/// E445 unless the world has the ranks and the collectives of the programs.
fn fits(set: &ProgramSet, world: &World) -> Result<()> {
    let has_collectives = || world.transport().collectives() == collective_specs(set).as_slice();
    if world.rank_count() == set.rank_count() && has_collectives() {
        return Ok(());
    }
    let what = |ranks: usize, collectives: usize| format!("{ranks} ranks, {collectives} collectives");
    Err(Diagnostic::new("E445", "the world was created for other programs")
        .expected(what(set.rank_count(), set.collectives.len()))
        .found(what(world.rank_count(), world.transport().collectives().len()))
        .help("create it from the `collective_specs` of the same programs"))
}

/// The buffer of an input or output: E414 for an unknown name.
fn port(program: &Program, rank: usize, name: &str, is_input: bool) -> Result<BufferId> {
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

/// Ends steps of a runner from another thread.
#[derive(Clone)]
pub struct Interrupter {
    shared: Arc<Shared>,
}

impl Interrupter {
    /// Ends the current step, or the next one, with E427: each rank ends before its next compute
    /// instruction. The runner is unusable afterwards.
    pub fn interrupt(&self) {
        self.shared.interrupt();
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.shared.stop();
        // A worker that hangs in a kernel keeps its data alive; waiting for it would hang as well.
        if !self.shared.has_stragglers() {
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }
}

/// A lock whose holder may have panicked: the data is only used to report that.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
