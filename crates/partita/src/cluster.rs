//! The cluster of a run, from `[cluster]` in the config or a file of its own.
//!
//! Ranks with other devices are entries of `[[cluster.devices]]`, with the keys of a device.

use crate::keys::{Section, wrong};
use partita_base::{DType, Diagnostic, Result};
use partita_cost::{Algorithm, Cluster, Curve, Device, DeviceTarget, Level, Link, Others, READY};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use toml::{Table, Value};

/// Reads `[cluster]`: `name` is a ready cluster or a TOML file, whose keys are those of this section, and which the other
/// keys change. The cluster is checked.
pub fn cluster(section: &mut Section) -> Result<Cluster> {
    let name = name(section)?;
    let named = match READY.contains(&name.as_str()) || !Path::new(&name).exists() {
        true => Cluster::ready(&name)?,
        false => from_file(&name)?,
    };
    changed(named, section)
}

/// A cluster from a file: the keys of `[cluster]` at its top.
fn from_file(path: &str) -> Result<Cluster> {
    let unreadable = |found: String| {
        Diagnostic::new("E473", format!("the cluster file `{path}` cannot be read"))
            .expected("a TOML file with the keys of the section [cluster]")
            .found(found)
    };
    let text = partita_base::read_text(path).map_err(|error| unreadable(error.to_string()))?;
    let table: Table =
        text.parse().map_err(|error: toml::de::Error| unreadable(error.message().to_string()))?;
    let mut root = Table::from_iter([(path.to_string(), Value::Table(table))]);
    let mut section = Section::take(&mut root, path)?;
    let ready = name(&mut section)?;
    let cluster = changed(Cluster::ready(&ready)?, &mut section)?;
    section.end()?;
    Ok(Cluster { name: path.to_string(), ..cluster })
}

/// The key `name`.
fn name(section: &mut Section) -> Result<String> {
    section.get(
        "name",
        READY[0].to_string(),
        "laptop, a100-8, h100-8, h100-pod, or a TOML file with these keys",
    )
}

/// The default of a key that changes the named cluster.
const AS_NAMED: &str = "that of cluster.name";

/// The cluster with the figures of the section.
fn changed(mut cluster: Cluster, section: &mut Section) -> Result<Cluster> {
    change_device(&mut cluster.device, section, AS_NAMED)?;
    let about =
        "levels of links, nearest ranks first: latency_s, bytes_per_s, ranks, algorithm, links (shared)";
    if let Some(value) = section.raw("links", "tables", AS_NAMED, about) {
        cluster.levels = levels(&value)?;
    }
    let about = "ranks with other devices: first (rank), name, keys of a device, links";
    if let Some(value) = section.raw("devices", "tables", AS_NAMED, about) {
        let others = value.as_array().ok_or_else(|| wrong("cluster.devices", "a list of tables", &value))?;
        cluster.others = others.iter().map(|entry| other(&cluster.device, entry)).collect::<Result<_>>()?;
    }
    let about = "ranks that compute at the same time, where more of them share the cores of a machine";
    if let Some(cores) = section.find::<NonZeroUsize>("cores", AS_NAMED, about)? {
        cluster.cores = Some(cores.get());
    }
    cluster.check()?;
    Ok(cluster)
}

/// An entry of `[[cluster.devices]]`; figures that it does not name are those of the device of the first ranks.
fn other(device: &Device, entry: &Value) -> Result<Others> {
    let key = "cluster.devices";
    let mut root = Table::from_iter([(key.to_string(), entry.clone())]);
    let mut section = Section::take(&mut root, key)?;
    let first = section.find("first", "required", "the first rank with this device")?;
    let first =
        first.ok_or_else(|| wrong(key, "tables with `first`, the first rank with this device", entry))?;
    let name = section.find::<String>("name", "that of the first ranks", "this device: v100-32g")?;
    let mut device = match name {
        // The entry itself says for which ranks.
        Some(name) if name.contains([':', '+']) => {
            return Err(wrong(
                "cluster.devices.name",
                "a device without a count, such as v100-32g",
                &Value::from(name),
            ));
        }
        Some(name) => Cluster::ready(&name)?.device,
        None => device.clone(),
    };
    change_device(&mut device, &mut section, "that of devices.name")?;
    let links =
        match section.raw("links", "tables", "those of the levels", "links of these ranks at each level") {
            Some(value) => links(&value)?,
            None => Vec::new(),
        };
    section.end()?;
    Ok(Others { first, device, links })
}

/// Changes the figures of a device to those of a section.
fn change_device(device: &mut Device, section: &mut Section, as_named: &str) -> Result<()> {
    if let Some(kind) = section.find("device", as_named, "kind of device, for messages")? {
        device.kind = kind;
    }
    let about = "what its programs are lowered for: cpu or gpu";
    if let Some(name) = section.find::<String>("target", as_named, about)? {
        let target = DeviceTarget::ALL.into_iter().find(|target| target.name() == name);
        device.target = target.ok_or_else(|| wrong("cluster.target", "cpu or gpu", &Value::from(name)))?;
    }
    for (key, figure, about) in [
        ("flops_per_s", &mut device.flops_per_s, "floating-point operations per second of a device"),
        (
            "memory_bytes_per_s",
            &mut device.memory_bytes_per_s,
            "memory bandwidth of a device, in bytes per second",
        ),
        (
            "host_bytes_per_s",
            &mut device.host_bytes_per_s,
            "bandwidth of a device's link to host memory, one way, in bytes per second",
        ),
        ("overlap", &mut device.overlap, "share of communication that computation can hide, from 0 to 1"),
    ] {
        if let Some(number) = section.find(key, as_named, about)? {
            *figure = number;
        }
    }
    if let Some(bytes) = section.find("memory_bytes", as_named, "memory of a device, in bytes")? {
        device.memory_bytes = bytes;
    }
    let about = "host memory of a device, its part of that of a node, in bytes";
    if let Some(bytes) = section.find("host_bytes", as_named, about)? {
        device.host_bytes = bytes;
    }
    let about = "operations per second for element types: { bf16 = 989e12 }";
    if let Some(value) = section.raw("flops_per_s_by_type", "table", as_named, about) {
        device.flops_per_s_by_type = by_type(&value)?;
    }
    for (key, curve, about) in [
        (
            "flops_efficiency",
            &mut device.flops_efficiency,
            "share of flops_per_s by operations: [[1e6, 0.1], ..]",
        ),
        (
            "memory_efficiency",
            &mut device.memory_efficiency,
            "share of memory_bytes_per_s by bytes: [[1e4, 0.2], ..]",
        ),
    ] {
        if let Some(value) = section.raw(key, "number or points", as_named, about) {
            *curve = self::curve(key, &value)?;
        }
    }
    Ok(())
}

/// `{ bf16 = 989e12 }`.
fn by_type(value: &Value) -> Result<BTreeMap<DType, f64>> {
    let key = "cluster.flops_per_s_by_type";
    let rate = |(name, rate): (&String, &Value)| {
        let dtype = DType::from_name(name).ok_or_else(|| wrong(key, "names of element types", value))?;
        Ok((dtype, number(rate).ok_or_else(|| wrong(key, "a number for each type", rate))?))
    };
    let table = value.as_table().ok_or_else(|| wrong(key, "a table of element types", value))?;
    table.iter().map(rate).collect()
}

/// One number, or `[[size, efficiency], ..]`.
fn curve(key: &str, value: &Value) -> Result<Curve> {
    let refused = || wrong(&format!("cluster.{key}"), "a number, or a list of [size, efficiency]", value);
    if let Some(efficiency) = number(value) {
        return Curve::new(vec![(1.0, efficiency)]);
    }
    let point = |point: &Value| match point.as_array().map(Vec::as_slice) {
        Some([size, efficiency]) => {
            Ok((number(size).ok_or_else(refused)?, number(efficiency).ok_or_else(refused)?))
        }
        _ => Err(refused()),
    };
    Curve::new(value.as_array().ok_or_else(refused)?.iter().map(point).collect::<Result<_>>()?)
}

/// What a list of levels takes.
const OF_LEVELS: &str =
    "a list of tables with latency_s, bytes_per_s, and perhaps ranks, algorithm and links";

/// `[{ ranks = 8, latency_s = 3e-6, bytes_per_s = 450e9 }, ..]`, the nearest ranks first.
fn levels(value: &Value) -> Result<Vec<Level>> {
    let key = "cluster.links";
    let level = |value: &Value| {
        let mut root = Table::from_iter([(key.to_string(), value.clone())]);
        let mut section = Section::take(&mut root, key)?;
        let ranks = section.find::<NonZeroUsize>("ranks", "all", "ranks of the level")?;
        let links = section.find::<NonZeroUsize>(
            "links",
            "one for each rank",
            "links of a block of the level below to others",
        );
        let links = links.map_err(|error| error.help("without `links`, each rank has a link of its own"))?;
        let link = link(key, value, &mut section)?;
        section.end()?;
        Ok(Level { ranks: ranks.map(NonZeroUsize::get), link, links: links.map(NonZeroUsize::get) })
    };
    value.as_array().ok_or_else(|| wrong(key, OF_LEVELS, value))?.iter().map(level).collect()
}

/// `[{ latency_s = 3e-6, bytes_per_s = 450e9 }, ..]`, one for each level.
fn links(value: &Value) -> Result<Vec<Link>> {
    let key = "cluster.devices.links";
    let read = |value: &Value| {
        let mut root = Table::from_iter([(key.to_string(), value.clone())]);
        let mut section = Section::take(&mut root, key)?;
        let link = link(key, value, &mut section)?;
        section.end()?;
        Ok(link)
    };
    value.as_array().ok_or_else(|| wrong(key, OF_LEVELS, value))?.iter().map(read).collect()
}

/// The keys of a link.
fn link(key: &str, value: &Value, section: &mut Section) -> Result<Link> {
    let mut figure = |name: &str, about: &'static str| {
        section.find(name, "required", about)?.ok_or_else(|| wrong(key, OF_LEVELS, value))
    };
    let (latency_s, bytes_per_s) =
        (figure("latency_s", "latency in seconds")?, figure("bytes_per_s", "bandwidth in bytes per second")?);
    let algorithm =
        match section.find::<String>("algorithm", "the default one", "algorithm of collectives")? {
            None => Algorithm::default(),
            Some(name) => {
                Algorithm::ALL.iter().find(|(known, _)| *known == name).map(|(_, a)| *a).ok_or_else(|| {
                    let known: Vec<&str> = Algorithm::ALL.iter().map(|(name, _)| *name).collect();
                    Diagnostic::new("E004", format!("`{key}` cannot have the algorithm `{name}`"))
                        .expected(known.join(" or "))
                })?
            }
        };
    Ok(Link { latency_s, bytes_per_s, algorithm })
}

/// A number; an integer counts as one.
fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|integer| integer as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Cluster> {
        let mut root: Table = text.parse().unwrap();
        let mut section = Section::take(&mut root, "cluster")?;
        let cluster = cluster(&mut section)?;
        section.end()?;
        Ok(cluster)
    }

    fn code(text: &str) -> &'static str {
        read(text).map(|_| ()).unwrap_err().code
    }

    #[test]
    fn an_entry_of_others_names_one_device() {
        for name in ["v100-32g:1x4", "a100-80g:1x8+v100-32g:1x8"] {
            let text = format!("name = 'a100-80g:2x8'\n[[cluster.devices]]\nfirst = 8\nname = '{name}'");
            assert_eq!(code(&format!("[cluster]\n{text}")), "E002", "{name}");
        }
        let file = "[cluster]\nname = 'a100-80g:2x8'\n[[cluster.devices]]\nfirst = 8\nname = 'Cargo.toml'";
        assert!(read(file).is_err(), "an entry names no file");
    }

    #[test]
    fn keys_change_the_cluster_that_is_named() {
        assert_eq!(read("").unwrap(), Cluster::default());
        let cluster = read(
            "[cluster]\nname = 'h100-8'\nflops_per_s = 1\nflops_per_s_by_type = { bf16 = 2 }\n\
             flops_efficiency = [[1e6, 0.1], [1e9, 0.8]]\nmemory_efficiency = 0.5\nmemory_bytes = 7\n\
             links = [{ ranks = 4, latency_s = 1e-6, bytes_per_s = 1e9 },\n\
             { latency_s = 1e-5, bytes_per_s = 1e8, algorithm = 'tree' }]\n",
        )
        .unwrap();
        let ready = Cluster::ready("h100-8").unwrap();
        assert_eq!(cluster.name, "h100-8");
        assert_eq!(cluster.device.memory_bytes_per_s, ready.device.memory_bytes_per_s);
        assert_eq!((cluster.device.flops_per_s, cluster.device.memory_bytes), (1.0, 7));
        assert_eq!(cluster.device.flops_per_s_by_type, BTreeMap::from([(DType::BF16, 2.0)]));
        assert_eq!(cluster.device.flops_efficiency.at(1e9), 0.8);
        assert_eq!(cluster.device.memory_efficiency, Curve::constant(0.5));
        let ranks: Vec<Option<usize>> = cluster.levels.iter().map(|level| level.ranks).collect();
        assert_eq!(ranks, [Some(4), None]);
        assert_eq!(cluster.levels[1].link.algorithm, Algorithm::Tree);
    }

    #[test]
    fn a_file_is_a_cluster_that_keys_change() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "name = 'a100-8'\noverlap = 0.25\n").unwrap();
        let name = file.path().display();
        let cluster = read(&format!("[cluster]\nname = '{name}'\nmemory_bytes = 9\n")).unwrap();
        let ready = Cluster::ready("a100-8").unwrap();
        assert_eq!((cluster.device.overlap, cluster.device.memory_bytes), (0.25, 9));
        assert_eq!((cluster.name, cluster.device.kind), (name.to_string(), ready.device.kind));
        std::fs::write(file.path(), "overlap = \n").unwrap();
        assert_eq!(code(&format!("[cluster]\nname = '{name}'\n")), "E473");
    }

    #[test]
    fn ranks_may_have_other_devices_and_share_links() {
        let cluster = read(
            "[cluster]\nname = 'a100-80g:2x8'\n\
             links = [{ ranks = 8, latency_s = 1e-6, bytes_per_s = 3e11 },\n\
             { ranks = 16, latency_s = 1e-5, bytes_per_s = 25e9, links = 4 }]\n\
             [[cluster.devices]]\nfirst = 8\nname = 'v100-32g'\nmemory_bytes = 9\n\
             links = [{ latency_s = 1e-6, bytes_per_s = 1e11 }, { latency_s = 1e-5, bytes_per_s = 1e10 }]\n\
             [[cluster.devices]]\nfirst = 12\noverlap = 0.5\n",
        )
        .unwrap();
        let named = |name: &str| Cluster::ready(name).unwrap().device;
        assert_eq!(cluster.levels.iter().map(|level| level.links).collect::<Vec<_>>(), [None, Some(4)]);
        assert_eq!(*cluster.device_of(7), named("a100-80g"));
        assert_eq!(*cluster.device_of(8), Device { memory_bytes: 9, ..named("v100-32g") });
        assert_eq!(cluster.others[0].links[1].bytes_per_s, 1e10);
        assert_eq!(*cluster.device_of(15), Device { overlap: 0.5, ..named("a100-80g") });
        let mixed = read("[cluster]\nname = 'a100-80g:1x8+v100-32g:1x8'").unwrap();
        assert_eq!(*mixed.device_of(8), named("v100-32g"));
    }

    #[test]
    fn bad_clusters_are_told_apart() {
        assert_eq!(code("[cluster]\nname = 'h200-9'"), "E473");
        assert_eq!(code("[cluster]\nflops = 1"), "E001");
        assert_eq!(code("[cluster]\nflops_per_s = 'fast'"), "E002");
        assert_eq!(code("[cluster]\nflops_per_s = 0"), "E470");
        assert_eq!(code("[cluster]\nflops_per_s_by_type = { f8 = 1 }"), "E002");
        assert_eq!(code("[cluster]\nflops_efficiency = [[1, 0.1], [2, 0.9]]"), "E472");
        assert_eq!(code("[cluster]\nmemory_efficiency = [1, 2]"), "E002");
        assert_eq!(code("[cluster]\nlinks = []"), "E471");
        for links in [0, -1] {
            let text = format!("[cluster]\nlinks = [{{ latency_s = 1, bytes_per_s = 1, links = {links} }}]");
            let error = read(&text).unwrap_err();
            let Diagnostic { code, expected, help, .. } = &*error;
            assert_eq!((*code, expected.as_deref()), ("E002", Some("an integer of at least 1")), "{error}");
            assert!(help.as_deref().is_some_and(|help| help.contains("without `links`")), "{error}");
        }
        assert_eq!(code("[cluster]\ncores = 0"), "E002");
        assert_eq!(code("[cluster]\nothers = []"), "E001");
        assert_eq!(code("[cluster]\ntarget = 'tpu'"), "E002");
        assert_eq!(code("[cluster]\ndevices = [{ name = 'v100-32g' }]"), "E002");
        assert_eq!(code("[cluster]\ndevices = [{ first = 0 }]"), "E471");
        assert_eq!(code("[cluster]\ndevices = [{ first = 1, flops = 1 }]"), "E001");
        assert_eq!(code("[cluster]\ndevices = [{ first = 1, flops_per_s = 0 }]"), "E470");
        assert_eq!(code("[cluster]\ndevices = [{ first = 1, name = 'v100-33g' }]"), "E473");
        assert_eq!(code("[cluster]\ndevices = [{ first = 1, links = [] }, { first = 1 }]"), "E471");
        assert_eq!(code("[cluster]\nname = 'a100-80g:1x8+v100-32g:1x4'"), "E471");
        assert_eq!(code("[cluster]\nlinks = [{ ranks = 8 }]"), "E002");
        assert_eq!(
            code("[cluster]\nlinks = [{ latency_s = 1, bytes_per_s = 1, algorithm = 'star' }]"),
            "E004"
        );
        assert_eq!(code("[cluster]\nlinks = [{ latency_s = 1, bytes_per_s = 1, speed = 1 }]"), "E001");
    }
}
