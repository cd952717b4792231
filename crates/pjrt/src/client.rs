//! Clients and their devices.

use crate::api::{Api, Call, Handle, Object, list, text};
use crate::buffer::Buffer;
use crate::executable::Executable;
use crate::layout::{
    ClientCreate, ClientDevices, ClientTopology, Counted, DescriptionId, DescriptionKind, DeviceDescription,
    DeviceMemoryStats, NamedValue, PlatformName, PlatformVersion, RawClient, RawDescription, RawDevice,
};
use crate::options::CompileOptions;
use crate::store::{Callbacks, Store};
use crate::topology::Topology;
use crate::value::{Value, describe};
use partita_base::{DType, Diagnostic, Result};
use std::fmt;
use std::sync::Arc;

/// The devices that one process uses through a plugin. Clones are the same client; it is destroyed after the last of
/// its clones, devices, buffers and executables.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Shared>);

/// What all objects of a client keep alive.
pub(crate) struct Shared {
    pub handle: Handle<RawClient>,
    platform: String,
    version: String,
    devices: Vec<DeviceFacts>,
    // Below the handle, so that it is dropped after the client, which calls it.
    _callbacks: Option<Callbacks>,
}

/// What never changes of a device.
struct DeviceFacts {
    object: Object<RawDevice>,
    id: i32,
    kind: String,
}

/// Id and kind of a device.
///
/// # Safety
///
/// The description must be one of a client or topology that is alive.
pub(crate) unsafe fn describe_device(api: Api, description: Object<RawDescription>) -> Call<(i32, String)> {
    // SAFETY: by the contract of this function; the text belongs to the description.
    unsafe {
        let id = api.ask::<DescriptionId>(description)?.id;
        let kind = api.ask::<DescriptionKind>(description)?;
        Ok((id, text(kind.text, kind.length)))
    }
}

impl Shared {
    /// Asks a client what never changes. Should that fail, the parameters are dropped from the last to the first.
    fn read(callbacks: Option<Callbacks>, handle: Handle<RawClient>) -> Call<Shared> {
        let api = handle.api();
        let name = handle.ask::<PlatformName>()?;
        // SAFETY: the text belongs to the client, which is alive.
        let platform = unsafe { text(name.text, name.length) };
        let name = handle.ask::<PlatformVersion>()?;
        // SAFETY: the text belongs to the client, which is alive.
        let version = unsafe { text(name.text, name.length) };
        let found = handle.ask::<ClientDevices>()?;
        let mut devices = Vec::with_capacity(found.length);
        // SAFETY: the list belongs to the client, which is alive and never changes it.
        for &device in unsafe { list(found.list, found.length) } {
            let object = Object::new(device, "PJRT_Client_AddressableDevices")?;
            // SAFETY: the devices of a client, and their descriptions, live as long as it does.
            let (id, kind) = unsafe {
                let description = api.ask::<DeviceDescription>(object)?.description;
                describe_device(api, Object::new(description, "PJRT_Device_GetDescription")?)?
            };
            devices.push(DeviceFacts { object, id, kind });
        }
        Ok(Shared { handle, platform, version, devices, _callbacks: callbacks })
    }

    /// The address of a device.
    pub(crate) fn device(&self, index: usize) -> *mut RawDevice {
        self.devices[index].object.pointer()
    }

    /// The position of a device among those of this client.
    pub(crate) fn index_of(&self, device: *mut RawDevice) -> Option<usize> {
        self.devices.iter().position(|facts| facts.object.pointer() == device)
    }
}

impl Client {
    pub(crate) fn create(
        api: Api,
        options: &[(&str, Value)],
        store: Option<Arc<dyn Store>>,
    ) -> Result<Client> {
        let named: Vec<NamedValue> = options.iter().map(|(name, value)| value.named(name)).collect();
        let mut it = ClientCreate::zeroed();
        (it.options, it.count) = (named.as_ptr(), named.len());
        let callbacks = store.map(Callbacks::new);
        if let Some(callbacks) = &callbacks {
            callbacks.give_to(&mut it);
        }
        // SAFETY: the options are an array of its length, and point to names and values that outlive the call; the
        // callbacks outlive the client. The client is ours.
        let created = unsafe { api.call(&mut it).and_then(|()| api.own(it.client, "PJRT_Client_Create")) };
        let shared = created.and_then(|handle| Shared::read(callbacks, handle));
        let shared = shared.map_err(|failure| {
            failure.report("E064", "the PJRT plugin does not create a client").at(describe(options))
        })?;
        Ok(Client(Arc::new(shared)))
    }

    /// The name of the platform: `cpu`, `cuda`.
    pub fn platform(&self) -> &str {
        &self.0.platform
    }

    /// The version of the platform as a text of the plugin, which may have several lines. Together with the platform it
    /// tells which saved executables this client can load.
    pub fn version(&self) -> &str {
        &self.0.version
    }

    /// The devices that this process can use, in ascending order of their ids.
    pub fn devices(&self) -> Vec<Device> {
        (0..self.0.devices.len()).map(|index| Device { client: self.clone(), index }).collect()
    }

    /// The device with this id.
    pub fn device(&self, id: i32) -> Option<Device> {
        let index = self.0.devices.iter().position(|facts| facts.id == id)?;
        Some(Device { client: self.clone(), index })
    }

    /// Compiles a program, the text of a StableHLO module with a function `main`, for the devices of `options`.
    ///
    /// # Errors
    ///
    /// E065 for text that XLA refuses, with its reason, line and column, and for options that do not fit this client: no
    /// devices, a device that it does not have, an unknown XLA flag. Also for text that sets a layout other than row-major
    /// for an argument or a result.
    pub fn compile(&self, text: &str, options: &CompileOptions) -> Result<Executable> {
        Executable::compile(self, text, options)
    }

    /// Loads an executable that [`Compiled::serialize`](crate::Compiled::serialize) has saved. It runs on the devices
    /// that it was compiled for. It is machine code: load only what you trust.
    ///
    /// # Errors
    ///
    /// E066 for bytes that are no saved executable, a damaged one, one of another build of the plugin, and one for devices
    /// that this client does not have.
    pub fn load(&self, saved: &[u8]) -> Result<Executable> {
        Executable::load(self, saved)
    }

    /// Copies a dense row-major tensor to a device: `data` are its elements in the byte order of this machine, of
    /// [`DType::size_bytes`] each; booleans are bytes 0 or 1. The copy is complete when this returns.
    ///
    /// # Errors
    ///
    /// E481 if `data` has another length than the shape, for a device of another client, and if the device has too little
    /// memory.
    pub fn upload(&self, dtype: DType, shape: &[usize], data: &[u8], device: &Device) -> Result<Buffer> {
        Buffer::upload(self, dtype, shape, data, device)
    }

    /// The topology of this client, for compiling without loading.
    ///
    /// # Errors
    ///
    /// E064 if the platform describes no topologies.
    pub fn topology(&self) -> Result<Topology> {
        let found = self.0.handle.ask::<ClientTopology>();
        let found = found.and_then(|it| Object::new(it.topology, "PJRT_Client_TopologyDescription"));
        let found = found
            .map_err(|failure| failure.report("E064", "the PJRT client does not describe its topology"))?;
        Ok(Topology::of_client(self.clone(), found))
    }

    /// Whether both are the same client, so that buffers of one can be used with executables of the other.
    pub(crate) fn is(&self, other: &Client) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, {} devices)", self.0.platform, self.0.devices.len())
    }
}

/// A device of a client, which it keeps alive.
#[derive(Clone)]
pub struct Device {
    pub(crate) client: Client,
    pub(crate) index: usize,
}

/// Memory of a device in bytes. What a platform does not count is `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceMemory {
    /// In use now.
    pub in_use: u64,
    /// The most that was in use at a time.
    pub peak: Option<u64>,
    /// The most that the client may use.
    pub limit: Option<u64>,
    /// Held by the allocator, whether in use or not.
    pub pool: Option<u64>,
    /// The largest block that is free.
    pub largest_free: Option<u64>,
    /// The largest single allocation so far.
    pub largest_allocation: Option<u64>,
    /// The number of allocations so far.
    pub allocations: Option<u64>,
}

impl Device {
    fn facts(&self) -> &DeviceFacts {
        &self.client.0.devices[self.index]
    }

    /// The id, by which compile options name it. Ids of a client need not begin at 0, nor be without gaps.
    pub fn id(&self) -> i32 {
        self.facts().id
    }

    /// What kind of device it is: `cpu`, `NVIDIA H100 80GB HBM3`.
    pub fn kind(&self) -> &str {
        &self.facts().kind
    }

    /// The client that it belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The memory of the device; `None` on platforms that do not count it, such as CPUs.
    ///
    /// # Errors
    ///
    /// E482 if the device fails to count.
    pub fn memory_stats(&self) -> Result<Option<DeviceMemory>> {
        // SAFETY: the device lives as long as its client.
        let found = unsafe { self.client.0.handle.api().ask::<DeviceMemoryStats>(self.facts().object) };
        let it = match found {
            Ok(it) => it,
            Err(failure) if failure.is_unsupported() => return Ok(None),
            Err(failure) => {
                let message = format!("{self:?} does not say how much memory it uses");
                return Err(failure.report("E482", message));
            }
        };
        let bytes = |counted: Counted| counted.is_set.then(|| u64::try_from(counted.value).unwrap_or(0));
        Ok(Some(DeviceMemory {
            in_use: u64::try_from(it.in_use).unwrap_or(0),
            peak: bytes(it.peak),
            limit: bytes(it.limit),
            pool: bytes(it.pool),
            largest_free: bytes(it.largest_free),
            largest_allocation: bytes(it.largest),
            allocations: bytes(it.allocations),
        }))
    }

    /// E481 if it is not a device of `client`: a plugin must not get objects of another client, which it may not even
    /// have created.
    pub(crate) fn belongs_to(&self, client: &Client) -> Result<()> {
        if self.client.is(client) {
            return Ok(());
        }
        Err(Diagnostic::new("E481", "the device belongs to another client")
            .expected(format!("a device of {client:?}"))
            .found(format!("{self:?} of another {:?}", self.client))
            .help("download the buffer, and upload it with the other client"))
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        self.client.is(&other.client) && self.index == other.index
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} ({})", self.id(), self.kind())
    }
}
