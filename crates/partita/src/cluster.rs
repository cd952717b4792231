//! The cluster of a run, from `[cluster]` in the config or a file of its own.

use crate::keys::{Section, wrong};
use partita_base::{DType, Diagnostic, Result};
use partita_cost::{Algorithm, Cluster, Curve, Level, Link, READY};
use std::collections::BTreeMap;
use std::path::Path;
use toml::{Table, Value};

/// Reads `[cluster]`: `name` is a ready cluster or a TOML file, whose keys are those of this section, and which the other
/// keys change. The cluster is checked.
pub fn cluster(section: &mut Section) -> Result<Cluster> {
    let name = name(section)?;
    let base = match READY.contains(&name.as_str()) || !Path::new(&name).exists() {
        true => Cluster::ready(&name)?,
        false => from_file(&name)?,
    };
    changed(base, section)
}

/// A cluster from a file: the keys of `[cluster]` at its top.
fn from_file(path: &str) -> Result<Cluster> {
    let unreadable = |found: String| {
        Diagnostic::new("E473", format!("the cluster file `{path}` cannot be read"))
            .expected("a TOML file with the keys of the section [cluster]")
            .found(found)
    };
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
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
    let device = &mut cluster.device;
    if let Some(kind) = section.find("device", AS_NAMED, "kind of device, for messages")? {
        device.kind = kind;
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
        if let Some(number) = section.find(key, AS_NAMED, about)? {
            *figure = number;
        }
    }
    if let Some(bytes) = section.find("memory_bytes", AS_NAMED, "memory of a device, in bytes")? {
        device.memory_bytes = bytes;
    }
    let about = "host memory of a device, its part of that of a node, in bytes";
    if let Some(bytes) = section.find("host_bytes", AS_NAMED, about)? {
        device.host_bytes = bytes;
    }
    let about = "operations per second for element types: { bf16 = 989e12 }";
    if let Some(value) = section.raw("flops_per_s_by_type", "table", AS_NAMED, about) {
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
        if let Some(value) = section.raw(key, "number or points", AS_NAMED, about) {
            *curve = self::curve(key, &value)?;
        }
    }
    let about = "levels of links, nearest ranks first: latency_s, bytes_per_s, ranks, algorithm";
    if let Some(value) = section.raw("links", "tables", AS_NAMED, about) {
        cluster.levels = levels(&value)?;
    }
    let about = "ranks that compute at the same time, where more of them share the cores of a machine";
    if let Some(cores) = section.find("cores", AS_NAMED, about)? {
        cluster.cores = Some(cores);
    }
    cluster.check()?;
    Ok(cluster)
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

/// `[{ ranks = 8, latency_s = 3e-6, bytes_per_s = 450e9 }, ..]`, the nearest ranks first.
fn levels(value: &Value) -> Result<Vec<Level>> {
    let key = "cluster.links";
    let expected = "a list of tables with latency_s, bytes_per_s, and perhaps ranks and algorithm";
    let level = |value: &Value| {
        let mut root = Table::from_iter([(key.to_string(), value.clone())]);
        let mut section = Section::take(&mut root, key)?;
        let ranks = section.find("ranks", "all", "ranks of the level")?;
        let mut figure = |name: &str, about: &'static str| {
            section.find(name, "required", about)?.ok_or_else(|| wrong(key, expected, value))
        };
        let (latency_s, bytes_per_s) = (
            figure("latency_s", "latency in seconds")?,
            figure("bytes_per_s", "bandwidth in bytes per second")?,
        );
        let algorithm =
            match section.find::<String>("algorithm", "the default one", "algorithm of collectives")? {
                None => Algorithm::default(),
                Some(name) => {
                    Algorithm::ALL.iter().find(|(known, _)| *known == name).map(|(_, a)| *a).ok_or_else(
                        || {
                            let known: Vec<&str> = Algorithm::ALL.iter().map(|(name, _)| *name).collect();
                            Diagnostic::new("E004", format!("`{key}` cannot have the algorithm `{name}`"))
                                .expected(known.join(" or "))
                        },
                    )?
                }
            };
        section.end()?;
        Ok(Level { ranks, link: Link { latency_s, bytes_per_s, algorithm } })
    };
    value.as_array().ok_or_else(|| wrong(key, expected, value))?.iter().map(level).collect()
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
    fn bad_clusters_are_told_apart() {
        assert_eq!(code("[cluster]\nname = 'h200-9'"), "E473");
        assert_eq!(code("[cluster]\nflops = 1"), "E001");
        assert_eq!(code("[cluster]\nflops_per_s = 'fast'"), "E002");
        assert_eq!(code("[cluster]\nflops_per_s = 0"), "E470");
        assert_eq!(code("[cluster]\nflops_per_s_by_type = { f8 = 1 }"), "E002");
        assert_eq!(code("[cluster]\nflops_efficiency = [[1, 0.1], [2, 0.9]]"), "E472");
        assert_eq!(code("[cluster]\nmemory_efficiency = [1, 2]"), "E002");
        assert_eq!(code("[cluster]\nlinks = []"), "E471");
        assert_eq!(code("[cluster]\nlinks = [{ ranks = 8 }]"), "E002");
        assert_eq!(
            code("[cluster]\nlinks = [{ latency_s = 1, bytes_per_s = 1, algorithm = 'star' }]"),
            "E004"
        );
        assert_eq!(code("[cluster]\nlinks = [{ latency_s = 1, bytes_per_s = 1, speed = 1 }]"), "E001");
    }
}
