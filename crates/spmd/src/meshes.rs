//! Layouts on several meshes. A program is partitioned on one mesh; annotations may be written on others, of other axes or
//! of the same devices in another order.
//!
//! Shardy's meshes list their devices, so a layout also says which device holds which shard. Partita chooses itself which
//! process is which rank, so propagation reads only which shards there are (`on_mesh`). Where inputs and results stay on
//! given devices, [`in_device_order`] moves the shards of inputs and outputs, by collective permutes, between the devices
//! that their annotations name and those that compute.

use crate::partition::Partitioned;
use partita_base::{Diagnostic, Result};
use partita_ir::ops::CollectivePermute;
use partita_ir::{Annotation, Graph, GraphBuilder, ValueId};
use partita_mesh::{AxisList, Mesh, Sharding};
use std::borrow::Cow;

/// The annotation expressed in the axes of `mesh`. A mesh that has the same devices in another order is read as if they
/// were in this order: which rank of a layout runs on which device is no part of it (see
/// [`in_device_order`](crate::in_device_order)). A value on one device alone, or on a mesh without axes, is whole on every
/// rank, and so is every value on a mesh of one rank. E216 if there is no equal layout.
pub(crate) fn on_mesh<'a>(
    graph: &Graph,
    mesh: &Mesh,
    value: ValueId,
    annotation: &'a Annotation,
) -> Result<Cow<'a, Annotation>> {
    let Some(own) = graph.meshes.get(annotation.mesh) else { return Ok(Cow::Borrowed(annotation)) };
    if own.only_device().is_some() || (own.axes == mesh.axes && own.has_devices_of(mesh)) {
        return Ok(Cow::Borrowed(annotation));
    }
    // JAX gives values beside a `shard_map` the mesh `@empty_mesh`.
    if mesh.rank_count() == 1 || own.axes.is_empty() {
        let sharding = Sharding::replicated(annotation.sharding.dims.len());
        return Ok(Cow::Owned(Annotation { sharding, replicated: Vec::new(), ..annotation.clone() }));
    }
    let translated = |own: &Mesh| {
        let sharding = annotation.sharding.on_mesh(own, mesh)?;
        let replicated = annotation.replicated.iter().map(|&axis| own.axis_on(axis, mesh));
        let replicated = replicated.collect::<Option<Vec<AxisList>>>()?.concat();
        Some(Annotation { sharding, replicated, ..annotation.clone() })
    };
    let in_order = || {
        own.ranks_on(mesh)?;
        translated(&Mesh { device_ids: mesh.device_ids.clone(), ..own.clone() })
    };
    translated(own).or_else(in_order).map(Cow::Owned).ok_or_else(|| {
        let devices = |mesh: &Mesh| match &mesh.device_ids {
            Some(ids) if ids.len() <= 16 => format!(" on devices {ids:?}"),
            Some(ids) => format!(" on {} devices in another order", ids.len()),
            None => String::new(),
        };
        let what = format!("the layout of `{}` is on another mesh", graph.describe(value));
        Diagnostic::new("E216", what)
            .at(annotation.origin.clone())
            .expected(format!("a layout that can be expressed in the axes of {mesh}{}", devices(mesh)))
            .found(format!("a layout in the axes of {own}{}", devices(own)))
            .help("give the layout on the mesh that the program is partitioned on")
    })
}

/// The local graph of each rank, for inputs and outputs on the devices that the meshes of their annotations list: a shard
/// that the rank of another device computes with is moved by a collective permute. E216 for an uneven layout, whose shards
/// cannot change places.
pub fn in_device_order(partitioned: &Partitioned) -> Result<Vec<Graph>> {
    let Partitioned { graph, mesh, .. } = partitioned;
    // For each rank, the rank of the annotation's mesh on the same device; none where both have one order.
    let places = |annotation: Option<&Annotation>| -> Option<Vec<usize>> {
        let annotation = annotation?;
        let own = graph.meshes.get(annotation.mesh)?;
        let is_whole = annotation.sharding.is_replicated();
        if is_whole || own.has_devices_of(mesh) { None } else { own.ranks_on(mesh) }
    };
    let of_input = |&value: &ValueId| places(graph.value(value).annotation.as_ref());
    let inputs: Vec<Option<Vec<usize>>> = graph.inputs.iter().map(of_input).collect();
    let outputs: Vec<Option<Vec<usize>>> =
        (0..graph.outputs.len()).map(|at| places(graph.output_annotations.get(at)?.as_ref())).collect();
    let moves = |graph: &Graph| -> Result<Graph> {
        let mut builder = GraphBuilder::new(&graph.name);
        builder.graph_mut().meshes.clone_from(&graph.meshes);
        let mut arrived = Vec::new();
        for (&input, places) in graph.inputs.iter().zip(&inputs) {
            let value = graph.value(input);
            let given = builder.input(&value.name, value.ty.clone(), value.role.clone());
            arrived.push(moved(&mut builder, given, places.as_deref(), |rank, place| (rank, place))?);
        }
        let mut left = Vec::new();
        for (computed, places) in builder.inline(graph, &arrived, true)?.into_iter().zip(&outputs) {
            left.push(moved(&mut builder, computed, places.as_deref(), |rank, place| (place, rank))?);
        }
        let mut local = builder.finish(left);
        local.output_names.clone_from(&graph.output_names);
        local.aliases.clone_from(&graph.aliases);
        Ok(local)
    };
    let ports = graph.inputs.iter().zip(&partitioned.inputs).zip(&inputs);
    let ports = ports.chain(graph.outputs.iter().zip(&partitioned.outputs).zip(&outputs));
    for ((&value, sharding), places) in ports {
        if places.is_some() && !sharding.is_even(&graph.ty(value).shape) {
            let what =
                format!("the uneven layout of `{}` is on devices in another order", graph.describe(value));
            return Err(Diagnostic::new("E216", what)
                .expected("extents that the axes divide, so that shards can change places")
                .found(sharding.display(mesh)));
        }
    }
    (0..mesh.rank_count()).map(|rank| moves(partitioned.local(rank))).collect()
}

/// A value after the move of its shards: from and to, given each rank and the rank of the annotation's mesh on its device.
fn moved(
    builder: &mut GraphBuilder,
    value: ValueId,
    places: Option<&[usize]>,
    from_to: impl Fn(usize, usize) -> (usize, usize),
) -> Result<ValueId> {
    let Some(places) = places else { return Ok(value) };
    let pairs = places.iter().enumerate().map(|(rank, &place)| from_to(rank, place)).collect();
    builder.push1(CollectivePermute { pairs }, &[value])
}
