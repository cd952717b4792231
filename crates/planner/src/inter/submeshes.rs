//! The slices of a cluster that stages may run on: a part of one node, or whole nodes.

use partita_base::{Diagnostic, Result};

/// Which slices are considered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Submeshes {
    /// Powers of two within a node, and any number of whole nodes.
    #[default]
    All,
    /// Powers of two of nodes.
    PowerOfTwo,
    /// Powers of two of nodes, at most four.
    SmallPowerOfTwo,
    /// Every number of devices within a node, and any number of whole nodes.
    Every,
}

/// The slices (nodes, devices of a node) of a cluster of `nodes` nodes with `devices` devices each, by size. Where the
/// devices of a node are no power of two, such as 6, the whole node is a slice too.
///
/// # Errors
/// E523 if the cluster has no devices.
pub fn submeshes(nodes: usize, devices: usize, kinds: Submeshes) -> Result<Vec<(usize, usize)>> {
    if nodes == 0 || devices == 0 {
        return Err(Diagnostic::new("E523", "a cluster without devices has no slices")
            .expected("at least one node with at least one device")
            .found(format!("{nodes} nodes with {devices} devices")));
    }
    let within = |size: &usize| kinds == Submeshes::Every || size.is_power_of_two() || *size == devices;
    let of_node = (1..=devices).filter(within).map(|size| (1, size));
    let across = |count: &usize| match kinds {
        Submeshes::All | Submeshes::Every => true,
        Submeshes::PowerOfTwo => count.is_power_of_two(),
        Submeshes::SmallPowerOfTwo => count.is_power_of_two() && *count <= 4,
    };
    Ok(of_node.chain((2..=nodes).filter(across).map(|count| (count, devices))).collect())
}
