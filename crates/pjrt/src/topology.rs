//! Descriptions of devices that need not be there.

use crate::api::{Api, Handle, Object, list, text};
use crate::client::{Client, describe_device};
use crate::executable::{Compiled, Owner, program};
use crate::layout::{
    NamedValue, RawTopology, TopologyCompile, TopologyCreate, TopologyDevices, TopologyPlatform,
};
use crate::options::CompileOptions;
use crate::value::{Value, describe};
use partita_base::Result;
use std::fmt;
use std::sync::Arc;

/// Devices by their description, for which programs can be compiled but not run. Clones are the same topology.
#[derive(Clone)]
pub struct Topology(Arc<Source>);

/// Who destroys a topology.
enum Source {
    /// We do.
    Own(Handle<RawTopology>),
    /// Its client does.
    OfClient(Object<RawTopology>, Client),
}

impl Topology {
    pub(crate) fn create(api: Api, name: &str, options: &[(&str, Value)]) -> Result<Topology> {
        let named: Vec<NamedValue> = options.iter().map(|(name, value)| value.named(name)).collect();
        let mut it = TopologyCreate::zeroed();
        (it.name, it.name_length) = (name.as_ptr(), name.len());
        (it.options, it.count) = (named.as_ptr(), named.len());
        // SAFETY: the options are an array of its length, and point to names and values that outlive the call, as does
        // the name. The topology is ours.
        let created = unsafe {
            api.call(&mut it).and_then(|()| api.own(it.topology, "PJRT_TopologyDescription_Create"))
        };
        let handle = created.map_err(|failure| {
            failure.report("E064", "the PJRT plugin does not describe such devices").at(describe(options))
        })?;
        Ok(Topology(Arc::new(Source::Own(handle))))
    }

    pub(crate) fn of_client(client: Client, topology: Object<RawTopology>) -> Topology {
        Topology(Arc::new(Source::OfClient(topology, client)))
    }

    fn api(&self) -> Api {
        match &*self.0 {
            Source::Own(handle) => handle.api(),
            Source::OfClient(_, client) => client.0.handle.api(),
        }
    }

    fn object(&self) -> Object<RawTopology> {
        match &*self.0 {
            Source::Own(handle) => handle.object(),
            Source::OfClient(topology, _) => *topology,
        }
    }

    /// The name of the platform: `cpu`, `cuda`.
    ///
    /// # Errors
    ///
    /// E482 if the plugin does not say.
    pub fn platform(&self) -> Result<String> {
        // SAFETY: the topology is alive, and the text belongs to it.
        let name = unsafe {
            let found = self.api().ask::<TopologyPlatform>(self.object());
            found.map(|it| text(it.text, it.length))
        };
        name.map_err(|failure| failure.report("E482", "the PJRT plugin does not describe a topology"))
    }

    /// Id and kind of each device.
    ///
    /// # Errors
    ///
    /// E482 if the plugin does not say.
    pub fn devices(&self) -> Result<Vec<(i32, String)>> {
        let api = self.api();
        // SAFETY: the topology is alive, and list and descriptions belong to it.
        let found = unsafe {
            api.ask::<TopologyDevices>(self.object()).and_then(|it| {
                let devices = list(it.list, it.length).iter();
                let name = "PJRT_TopologyDescription_GetDeviceDescriptions";
                devices.map(|device| describe_device(api, Object::new(*device, name)?)).collect()
            })
        };
        found.map_err(|failure| failure.report("E482", "the PJRT plugin does not describe a topology"))
    }

    /// Compiles a program, the text of a StableHLO module with a function `main`, for devices of this topology. The
    /// result can be saved, and loaded by a client that has such devices.
    ///
    /// # Errors
    ///
    /// E065 for text that XLA refuses, with its reason, line and column, and for options that do not fit.
    pub fn compile(&self, text: &str, options: &CompileOptions) -> Result<Compiled> {
        let api = self.api();
        let (program, options) = (program(text), options.encode()?);
        let mut it = TopologyCompile::zeroed();
        (it.topology, it.program) = (self.object().pointer(), &program);
        (it.options, it.options_length) = (options.as_ptr(), options.len());
        // SAFETY: the topology is alive; program, its text and the options outlive the call; no client is given. The
        // executable is ours.
        let compiled = unsafe { api.call(&mut it).and_then(|()| api.own(it.executable, "PJRT_Compile")) };
        let compiled = compiled.and_then(|handle| Compiled::new(handle, Owner::Topology(self.clone())));
        compiled.map_err(|failure| failure.report("E065", "XLA does not compile this program"))
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.platform(), self.devices()) {
            (Ok(platform), Ok(devices)) => write!(f, "Topology({platform}, {} devices)", devices.len()),
            _ => f.write_str("Topology"),
        }
    }
}
