//! From a model and a plan to the local graphs of all ranks, as a list of passes. Each of the [`PASSES`] takes a
//! [`Building`] to the next. Lowering, in `partita_program`, continues from there with a list of its own. Any prefix can be
//! printed: `partita lower --print-after NAME`.

mod admission;
mod building;
mod forward;
mod layouts;

pub use building::Building;
pub use forward::open_composites;

use crate::differentiated::split_step;
use crate::request::{BuildRequest, Source, StepKind};
use partita_ir::pass::{Form, Pass, Segment};
use partita_ir::{graph_edit, precision, remat};
use partita_nn::append_update;
use partita_spmd::{microbatch_of, split_fused};

/// The way from a model to the local graphs of all ranks.
pub struct Front;

impl Segment for Front {
    type State = Building;
    type Context<'a> = BuildRequest<'a>;
}

/// Every pass from a model to local graphs, in the order in which [`BuildRequest::build`] runs them.
pub const PASSES: &[Pass<Front>] = &[
    Pass {
        name: "evaluation",
        about: "disable dropout, and of a whole step keep the loss alone",
        form: Form::Graph,
        when: |_, request| request.is_model() && request.part.is_evaluation(),
        run: |building, request| building.without_dropout(request),
    },
    Pass {
        name: "restructure",
        about: "apply the lines of the plan that mark, name or replace parts of the forward pass",
        form: Form::Model,
        when: |_, request| matches!(request.source, Source::Model(_)),
        run: |building, request| building.restructured(request),
    },
    Pass {
        name: "admit",
        about: "refuse values that no cluster holds, and microbatches that this process has no memory for",
        form: Form::Graph,
        when: |_, request| request.is_model(),
        run: |building, request| {
            admission::check(building.graph(), request)?;
            Ok(building)
        },
    },
    Pass {
        name: "forget-remat",
        about: "drop the marks of recomputation: without a backward pass there is nothing to recompute",
        form: Form::Graph,
        when: |_, request| request.is_model() && !request.part.has_gradients(),
        run: |building, _| {
            building.rewritten(|mut graph| {
                graph.nodes.iter_mut().for_each(|node| node.remat = None);
                Ok(graph)
            })
        },
    },
    Pass::<Front>::always(
        "slices",
        "cut the mesh into the slices of its pipeline",
        Form::Model,
        |building, request| building.sliced(request),
    ),
    Pass {
        name: "split-fused",
        about: "split dots whose results are sliced (fused QKV) into dots of slices of the parameter",
        form: Form::Graph,
        // An optimizer that sees whole tensors needs fused parameters whole.
        when: |_, request| request.is_forward() && request.options.step.optimizer.is_elementwise(),
        run: |building, _| {
            let mut pieces = Vec::new();
            let building = building.rewritten(|graph| {
                let (graph, parts) = split_fused(&graph)?;
                pieces = parts;
                Ok(graph)
            })?;
            Ok(Building { pieces, ..building })
        },
    },
    Pass {
        name: "precision",
        about: "compute products and what follows from them in a narrow type beside parameters of a wider one",
        form: Form::Graph,
        when: |_, request| {
            request.is_model()
                && (request.options.step.precision.is_some() || request.options.step.f8.is_some())
        },
        run: |building, request| building.in_precision(request),
    },
    Pass {
        name: "quantise-forward",
        about: "round operands of matmuls to 8 bits, in a forward pass alone",
        form: Form::Graph,
        when: |_, request| {
            request.is_model() && !request.part.has_gradients() && request.options.step.f8.is_some()
        },
        run: |building, request| building.quantised(request),
    },
    Pass {
        name: "mark-stages",
        about: "assign each op of the forward pass to a stage of the pipeline",
        form: Form::Model,
        when: |_, request| request.is_forward(),
        run: |mut building, _| {
            let Building { pipeline, graph, .. } = &mut building;
            pipeline.mark(graph)?;
            Ok(building)
        },
    },
    Pass {
        name: "hidden-outputs",
        about: "list the outputs that lines of the plan may name and the request leaves out",
        form: Form::Model,
        when: |_, request| request.is_model(),
        run: |building, request| Ok(building.hiding(request)),
    },
    Pass {
        name: "gradients",
        about: "differentiate the loss with respect to all parameters",
        form: Form::Graph,
        when: |_, request| request.is_forward() && request.part.has_gradients(),
        run: |building, request| building.differentiated(request),
    },
    Pass {
        name: "quantise",
        about: "round operands of matmuls to 8 bits, forward and backward",
        form: Form::Graph,
        when: |building, request| building.has_gradients() && request.options.step.f8.is_some(),
        run: |building, request| building.quantised(request),
    },
    Pass {
        name: "prune",
        about: "drop nodes that no output needs",
        form: Form::Graph,
        when: |building, _| building.has_gradients(),
        run: |building, _| building.rewritten(|graph| Ok(graph_edit::prune(graph))),
    },
    Pass {
        name: "remat",
        about: "compute what marked groups of the forward pass do not keep again where the backward pass reads it",
        form: Form::Graph,
        when: |building, _| building.has_gradients(),
        run: |building, _| building.rewritten(remat::rematerialise),
    },
    Pass {
        name: "widen-sums",
        about: "end sums whose narrow result is only converted to a wider type in that type",
        form: Form::Graph,
        when: |building, _| building.has_gradients(),
        run: |building, _| building.rewritten(|graph| precision::widen_sums(&graph)),
    },
    Pass {
        name: "microbatch",
        about: "run forward and backward pass on parts of the batch, one after the other",
        form: Form::Graph,
        when: |building, request| building.has_gradients() && request.options.microbatches > 1,
        run: |building, request| {
            let (count, rows) = (request.options.microbatches, request.options.rows);
            building.rewritten(|graph| microbatch_of(&graph, count, rows))
        },
    },
    Pass {
        name: "split-step",
        about: "of a model that is a whole step: assign its ops to stages, and run it in microbatches",
        form: Form::Model,
        when: |_, request| request.is_step() && request.part.has_gradients(),
        run: |mut building, request| {
            let Building { pipeline, graph, .. } = &building;
            building.graph =
                split_step(graph, request.options.microbatches, &|forward| pipeline.mark(forward))?;
            Ok(building)
        },
    },
    Pass {
        name: "split-differentiated",
        about: "of a program that arrives differentiated: find its forward pass, stages and microbatches",
        form: Form::Model,
        when: |_, request| !request.is_model(),
        run: |building, request| building.arrived(request),
    },
    Pass {
        name: "update",
        about: "clip the gradients and update parameters and states",
        form: Form::Graph,
        when: |building, request| building.has_gradients() && request.part == StepKind::Step,
        run: |building, request| building.rewritten(|graph| append_update(&graph, &request.options.step)),
    },
    Pass::<Front>::always(
        "inline-composites",
        "inline composites that the device has no kernel for, and drop what nothing reads then",
        Form::Graph,
        |building, request| {
            building.rewritten(|graph| open_composites(&graph, request.context.runner.target()))
        },
    ),
    Pass::<Front>::always(
        "apply",
        "annotate values with the layouts that the plan requests, on the mesh of each slice",
        Form::Model,
        |building, request| building.annotated(request),
    ),
    Pass::<Front>::always(
        "drop-outputs",
        "drop the outputs that the request leaves out, and what only they need",
        Form::Model,
        |building, _| building.without_hidden(),
    ),
    Pass {
        name: "cut",
        about: "cut the step into the graphs of its stages, and list what they send to each other",
        form: Form::Mesh,
        when: |building, _| !building.is_cut(),
        run: |building, request| building.cut(request),
    },
    Pass {
        name: "propagate",
        about: "give every value a layout, from the ones that are annotated",
        form: Form::Mesh,
        when: |building, _| building.laid_out.is_empty(),
        run: |building, _| building.laid_out(),
    },
    Pass::<Front>::always(
        "partition",
        "make local graphs, one per class of alike ranks, with their collectives",
        Form::Mesh,
        |building, request| building.partitioned(request),
    ),
];

/// The passes that make a step much larger. The memory of the process is checked after each; `partition` does so after each
/// stage.
pub(crate) const GROWING: &[&str] =
    &["microbatch", "split-step", "split-differentiated", "update", "apply", "propagate"];

/// The passes up to the one of this name, which must be in the list.
pub(crate) fn up_to(name: &str) -> &'static [Pass<Front>] {
    let last = PASSES.iter().position(|pass| pass.name == name).expect("the list has this pass");
    &PASSES[..=last]
}
