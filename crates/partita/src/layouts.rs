//! A graph with the layout of every value written into it.

use partita_ir::{Annotation, Graph, ValueId};
use partita_mesh::Mesh;
use partita_spmd::{Cause, Layouts, Partitioned};

/// The global graph with the layout of every value as its annotation, and the cause as the annotation's origin.
pub fn with_layouts(partitioned: &Partitioned) -> Graph {
    annotated(&partitioned.graph, &partitioned.mesh, &partitioned.layouts)
}

/// A graph with the layout of every value as its annotation, and the cause as the annotation's origin.
pub fn annotated(source: &Graph, on: &Mesh, layouts: &Layouts) -> Graph {
    let mut graph = source.clone();
    let mesh = graph.meshes.iter().position(|mesh| mesh == on).unwrap_or_else(|| {
        graph.meshes.push(on.clone());
        graph.meshes.len() - 1
    });
    for value in source.value_ids() {
        let sharding = layouts.sharding(value).clone();
        let open = vec![false; sharding.dims.len()];
        let origin = origin(source, layouts, value);
        graph.value_mut(value).annotation =
            Some(Annotation { mesh, sharding, open, replicated: vec![], origin });
    }
    graph
}

/// The cause of a value's layout; empty if it is replicated without a cause.
pub fn origin(graph: &Graph, layouts: &Layouts, value: ValueId) -> String {
    let mut causes: Vec<String> = Vec::new();
    for cause in layouts.causes[value.index()].iter().flatten() {
        let text = match cause {
            Cause::Pinned(who) => who.clone(),
            Cause::Through { from, .. } => format!("from {}", graph.describe(*from)),
            Cause::GradientOf(of) => format!("gradient of {}", graph.describe(*of)),
            Cause::RematOf(of) => format!("{} computed again", graph.describe(*of)),
            Cause::Alias(other) => format!("replaces or is replaced by {}", graph.describe(*other)),
            Cause::Group(other) => format!("in a sharding group with {}", graph.describe(*other)),
        };
        if !causes.contains(&text) {
            causes.push(text);
        }
    }
    causes.join("; ")
}
