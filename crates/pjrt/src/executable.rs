//! Compiled programs, loaded on devices or not.

use crate::api::{Api, Call, Failure, Handle, list, text};
use crate::buffer::{Buffer, describe, known, unanswered};
use crate::client::{Client, Device};
use crate::hlo;
use crate::layout::{
    Ask, ClientCompile, DeserializeAndLoad, ExecutableMemoryStats, ExecutableName, Execute, ExecuteOptions,
    LoadedDevices, LoadedExecutable, OptimizedProgram, OutputCount, OutputDimensions, OutputTypes, Program,
    RawBuffer, RawExecutable, RawLoaded, Serialize,
};
use crate::options::CompileOptions;
use crate::saved;
use crate::topology::Topology;
use partita_base::{DType, Diagnostic, Result};
use std::fmt;
use std::ops::Deref;

/// A compiled program: what can be asked without running it.
pub struct Compiled {
    // Above its owner, so that it is dropped first.
    handle: Handle<RawExecutable>,
    name: String,
    output_count: usize,
    inputs: Option<Vec<(DType, Vec<usize>)>>,
    _owner: Owner,
}

/// What a compiled program keeps alive.
pub(crate) enum Owner {
    Client(#[expect(dead_code, reason = "it is only kept alive")] Client),
    Topology(#[expect(dead_code, reason = "it is only kept alive")] Topology),
}

/// Memory that XLA has planned for one run, in bytes on each device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExecutableMemory {
    /// Code and constants.
    pub code: u64,
    /// Arguments.
    pub arguments: u64,
    /// Results, including those in the memory of arguments.
    pub results: u64,
    /// Results that take over the memory of donated arguments.
    pub aliased: u64,
    /// What is needed during the run only.
    pub temporary: u64,
    /// The most that is in use at a time. Platforms count differently: CPUs leave out the temporary part.
    pub peak: u64,
}

impl Compiled {
    pub(crate) fn new(handle: Handle<RawExecutable>, owner: Owner) -> Call<Compiled> {
        let name = handle.ask::<ExecutableName>()?;
        // SAFETY: the text belongs to the executable, which is alive.
        let name = unsafe { text(name.text, name.length) };
        let output_count = handle.ask::<OutputCount>()?.count;
        let shown = optimized(&handle);
        let inputs = shown.as_ref().and_then(|(format, program)| hlo::parameters(format, program));
        if shown.is_some_and(|(format, program)| !hlo::has_plain_layouts(&format, &program)) {
            return Err(Failure::Unusable {
                what: "arguments or results are not row-major, the only layout of buffers here",
            });
        }
        Ok(Compiled { handle, name, output_count, inputs, _owner: owner })
    }

    /// The name of the module.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of results on each device.
    pub fn output_count(&self) -> usize {
        self.output_count
    }

    /// Element type and extents of each argument on one device; `None` if the plugin does not show compiled programs.
    pub fn inputs(&self) -> Option<&[(DType, Vec<usize>)]> {
        self.inputs.as_deref()
    }

    /// Element type and extents of each result on one device.
    ///
    /// # Errors
    ///
    /// E482 if the plugin does not say, or uses an element type that Partita does not know.
    pub fn outputs(&self) -> Result<Vec<(DType, Vec<usize>)>> {
        let asked = |failure| unanswered(failure, "the results of a program");
        let types = self.handle.ask::<OutputTypes>().map_err(asked)?;
        let shapes = self.handle.ask::<OutputDimensions>().map_err(asked)?;
        // SAFETY: the lists belong to the executable, which is alive.
        let (types, ranks) = unsafe { (list(types.list, types.length), list(shapes.ranks, shapes.count)) };
        // SAFETY: as above; all extents follow each other.
        let mut extents = unsafe { list(shapes.dimensions, ranks.iter().sum()) };
        let mut outputs = Vec::with_capacity(types.len());
        for (number, rank) in types.iter().zip(ranks) {
            let (shape, rest) = extents.split_at(*rank);
            extents = rest;
            let shape = shape.iter().map(|extent| usize::try_from(*extent).unwrap_or(0)).collect();
            outputs.push((known(*number)?, shape));
        }
        Ok(outputs)
    }

    /// The program as bytes that [`Client::load`] reads: those of the plugin, with a checksum and its build. They are valid
    /// for the same build and the same kind of machine and devices. A key to cache them by is the text, the bytes of
    /// [`CompileOptions::encode`], [`Client::version`] and [`Plugin::build`](crate::Plugin::build).
    ///
    /// # Errors
    ///
    /// E066 if the plugin cannot save programs.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let it = self.handle.ask::<Serialize>();
        let it = it.map_err(|failure| failure.report("E066", "a compiled program cannot be saved"))?;
        // SAFETY: the bytes belong to the holder, which is freed below.
        let program = unsafe { list(it.bytes, it.length) };
        let bytes = saved::wrap(&self.handle.api().build(), program);
        if let Some(free) = it.free {
            // SAFETY: the plugin gives this function to free this holder once.
            unsafe { free(it.holder) };
        }
        Ok(bytes)
    }

    /// The memory that XLA has planned; `None` on platforms that do not say.
    ///
    /// # Errors
    ///
    /// E482 if the plugin fails to count.
    pub fn memory(&self) -> Result<Option<ExecutableMemory>> {
        let it = match self.handle.ask::<ExecutableMemoryStats>() {
            Ok(it) => it,
            Err(failure) if failure.is_unsupported() => return Ok(None),
            Err(failure) => return Err(unanswered(failure, "the memory of a program")),
        };
        let bytes = |count: i64| u64::try_from(count).unwrap_or(0);
        Ok(Some(ExecutableMemory {
            code: bytes(it.code),
            arguments: bytes(it.arguments),
            results: bytes(it.results),
            aliased: bytes(it.aliased),
            temporary: bytes(it.temporary),
            peak: bytes(it.peak),
        }))
    }
}

/// The format and the bytes of the program as XLA shows it after optimization, if it does.
fn optimized(handle: &Handle<RawExecutable>) -> Option<(Vec<u8>, Vec<u8>)> {
    let api = handle.api();
    let mut program = Program::zeroed();
    let mut it = OptimizedProgram::of(handle.pointer());
    it.program = &mut program;
    // SAFETY: the executable is alive. Without a target, the plugin only states the size and the format.
    unsafe { api.call(&mut it) }.ok()?;
    let mut code = vec![0u8; program.length];
    program.code = code.as_mut_ptr();
    it.program = &mut program;
    // SAFETY: the target has the stated size and outlives the call.
    unsafe { api.call(&mut it) }.ok()?;
    // SAFETY: the format is a constant of the plugin.
    let format = unsafe { list(program.format, program.format_length) };
    Some((format.to_vec(), code))
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Compiled({}, {} results)", self.name, self.output_count)
    }
}

/// A compiled program on devices of a client, ready to run.
pub struct Executable {
    // In the order of dropping: nothing of a client may outlive it.
    loaded: Handle<RawLoaded>,
    compiled: Compiled,
    devices: Vec<usize>,
    client: Client,
}

impl Executable {
    pub(crate) fn compile(client: &Client, text: &str, options: &CompileOptions) -> Result<Executable> {
        let api = client.0.handle.api();
        let (program, options) = (program(text), options.encode()?);
        let mut it = ClientCompile::zeroed();
        (it.client, it.program) = (client.0.handle.pointer(), &program);
        (it.options, it.options_length) = (options.as_ptr(), options.len());
        // SAFETY: the client is alive; program, its text and the options outlive the call. The executable is ours.
        let loaded =
            unsafe { api.call(&mut it).and_then(|()| api.own(it.executable, "PJRT_Client_Compile")) };
        let executable = loaded.and_then(|loaded| Executable::new(client, loaded));
        executable.map_err(|failure| failure.report("E065", "XLA does not compile this program"))
    }

    pub(crate) fn load(client: &Client, saved: &[u8]) -> Result<Executable> {
        let api = client.0.handle.api();
        let program = saved::unwrap(&api.build(), saved)?;
        let mut it = DeserializeAndLoad::zeroed();
        (it.client, it.bytes, it.length) = (client.0.handle.pointer(), program.as_ptr(), program.len());
        // SAFETY: the client is alive, and the bytes outlive the call. The executable is ours.
        let loaded = unsafe {
            api.call(&mut it).and_then(|()| api.own(it.executable, "PJRT_Executable_DeserializeAndLoad"))
        };
        let executable = loaded.and_then(|loaded| Executable::new(client, loaded));
        executable.map_err(|failure| failure.report("E066", "a saved program cannot be loaded"))
    }

    fn new(client: &Client, loaded: Handle<RawLoaded>) -> Call<Executable> {
        let api = loaded.api();
        let executable = loaded.ask::<LoadedExecutable>()?.executable;
        // SAFETY: the executable was created for us.
        let executable = unsafe { api.own(executable, "PJRT_LoadedExecutable_GetExecutable")? };
        let found = loaded.ask::<LoadedDevices>()?;
        // SAFETY: the list belongs to the loaded executable, which is alive.
        let devices = unsafe { list(found.list, found.length) };
        let devices = devices.iter().filter_map(|device| client.0.index_of(*device)).collect();
        let compiled = Compiled::new(executable, Owner::Client(client.clone()))?;
        Ok(Executable { loaded, compiled, devices, client: client.clone() })
    }

    /// The devices of this process that it runs on, in the order of replicas or partitions.
    pub fn devices(&self) -> Vec<Device> {
        self.devices.iter().map(|&index| Device { client: self.client.clone(), index }).collect()
    }

    /// Starts the program on all its devices. `arguments` has for each device, in the order of
    /// [`devices`](Executable::devices), the buffers of all arguments of `main`; the result has for each device the
    /// buffers of all results. It returns before they are computed.
    ///
    /// Arguments that the text marks with `tf.aliasing_output` are donated: they are deleted, and their memory is that of
    /// the result.
    ///
    /// # Errors
    ///
    /// E480 for a wrong number of devices or arguments, and for a buffer that was donated, has another shape or element type
    /// than its parameter, is on another device, or belongs to another client. Nothing is donated then. Types are compared
    /// if [`Compiled::inputs`] has them; otherwise XLA compares sizes.
    pub fn run<'a, A: AsRef<[&'a Buffer]>>(&self, arguments: &[A]) -> Result<Vec<Vec<Buffer>>> {
        self.run_keeping(arguments, &[])
    }

    /// As [`run`](Executable::run), but arguments with a number in `keep` are copied instead of donated.
    ///
    /// # Errors
    ///
    /// As for [`run`](Executable::run).
    pub fn run_keeping<'a, A: AsRef<[&'a Buffer]>>(
        &self,
        arguments: &[A],
        keep: &[usize],
    ) -> Result<Vec<Vec<Buffer>>> {
        let count = arguments.first().map_or(0, |first| first.as_ref().len());
        self.check(arguments, count)?;
        let keep: Vec<i64> = keep.iter().map(|&at| i64::try_from(at).unwrap_or(i64::MAX)).collect();
        let lists: Vec<Vec<*mut RawBuffer>> = arguments
            .iter()
            .map(|list| list.as_ref().iter().map(|buffer| buffer.handle.pointer()).collect())
            .collect();
        let mut results = vec![vec![std::ptr::null_mut::<RawBuffer>(); self.output_count]; arguments.len()];
        let argument_lists: Vec<_> = lists.iter().map(|list| list.as_ptr()).collect();
        let result_lists: Vec<_> = results.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let (mut options, mut it) = (ExecuteOptions::zeroed(), Execute::zeroed());
        (options.keep, options.keep_count) = (keep.as_ptr(), keep.len());
        (it.executable, it.options) = (self.loaded.pointer(), &mut options);
        (it.arguments, it.results) = (argument_lists.as_ptr(), result_lists.as_ptr());
        (it.devices, it.count) = (arguments.len(), count);
        let api = self.loaded.api();
        // SAFETY: the executable and all buffers are alive and of one client; there is a list of `count` arguments and
        // one with room for all results for each of its devices, which outlive the call.
        let started = unsafe { api.call(&mut it) };
        let started = started.and_then(|()| results.into_iter().map(|list| self.own(api, list)).collect());
        started.map_err(|failure| failure.report("E480", format!("the program {} cannot be run", self.name)))
    }

    fn own(&self, api: Api, results: Vec<*mut RawBuffer>) -> Call<Vec<Buffer>> {
        let own = |pointer| {
            // SAFETY: the run has created this buffer for us.
            let handle = unsafe { api.own(pointer, "PJRT_LoadedExecutable_Execute")? };
            Ok(Buffer { handle, client: self.client.clone() })
        };
        results.into_iter().map(own).collect()
    }

    /// What a plugin must not be given: lists of other lengths, past which it would read, objects of another client, and
    /// buffers of another type, of which it compares only the size. That a buffer was donated, it says itself.
    fn check<'a, A: AsRef<[&'a Buffer]>>(&self, arguments: &[A], count: usize) -> Result<()> {
        let refused =
            |message: String| Diagnostic::new("E480", format!("the program {}: {message}", self.name));
        if arguments.len() != self.devices.len() {
            return Err(refused("arguments for a wrong number of devices".into())
                .expected(format!("arguments for {} devices", self.devices.len()))
                .found(format!("for {}", arguments.len())));
        }
        let count = self.inputs().map_or(count, <[_]>::len);
        for (list, device) in arguments.iter().zip(self.devices()) {
            let list = list.as_ref();
            if list.len() != count {
                return Err(refused(format!("a wrong number of arguments on {device:?}"))
                    .expected(format!("{count} arguments"))
                    .found(format!("{}", list.len())));
            }
            for (at, buffer) in list.iter().enumerate() {
                let refused =
                    |what: &str| refused(format!("argument {at} {what}")).found(format!("{buffer:?}"));
                if !buffer.client.is(&self.client) {
                    return Err(refused("belongs to another client")
                        .expected(format!("a buffer of the {:?} of the program", self.client))
                        .help("download it, and upload it with the client of the program"));
                }
                if !buffer.is_on(&device) {
                    return Err(refused("is on another device")
                        .expected(format!("a buffer on {device:?}"))
                        .help("copy it with `Buffer::copy_to`"));
                }
                if let Some((dtype, shape)) = self.inputs().map(|inputs| &inputs[at])
                    && !buffer.has_type(*dtype, shape)
                {
                    return Err(
                        refused("has another type than its parameter").expected(describe(*dtype, shape))
                    );
                }
            }
        }
        Ok(())
    }
}

/// All that can be asked without running it.
impl Deref for Executable {
    type Target = Compiled;

    fn deref(&self) -> &Compiled {
        &self.compiled
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let results = self.outputs().map(|outputs| {
            outputs.iter().map(|(dtype, shape)| describe(*dtype, shape)).collect::<Vec<_>>().join(", ")
        });
        let devices: Vec<i32> = self.devices().iter().map(Device::id).collect();
        write!(f, "Executable({} on devices {devices:?} -> {})", self.name, results.unwrap_or_default())
    }
}

/// A program in the form `mlir`, the text of a StableHLO module, which it points to.
pub(crate) fn program(text: &str) -> Program {
    const FORMAT: &str = "mlir";
    let mut it = Program::zeroed();
    // A program of ours is only read; `code` is mutable since plugins write theirs to such a struct.
    (it.code, it.length) = (text.as_ptr().cast_mut(), text.len());
    (it.format, it.format_length) = (FORMAT.as_ptr(), FORMAT.len());
    it
}
