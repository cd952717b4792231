//! Whether each axis of the mesh and each line of the plan has an effect on a built step. What has none is most likely a
//! slip, so it is an error, unless it is written in a way that says that nothing should change.

use crate::build::Built;
use crate::contradictions::OVERRIDDEN;
use crate::modules::{Modules, is_inside, matches_around};
use crate::plan::{Entry, Plan};
use crate::primitive::{Offloaded, Primitive};
use crate::ready::is_default;
use crate::request::BuildOptions;
use crate::stages::{PIPELINE_AXIS, Stage};
use crate::structure::Structured;
use crate::style::Kind;
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_ir::{Annotation, Graph, Phase, Role, ValueId};
use partita_mesh::{AxisRole, Mesh};
use partita_spmd::Partitioned;
use std::collections::BTreeSet;

/// A line of a plan that changes nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Idle {
    /// The line with its origin.
    pub line: String,
    /// Why it changes nothing.
    pub why: String,
    /// What to write instead.
    pub help: String,
}

/// An axis over which nothing is sharded, so that its ranks all do the same work.
struct Unused {
    name: String,
    why: String,
    /// Whether this is so in some of the stages only: the axis is one of the whole mesh, and others use it.
    in_part: bool,
}

fn unused(built: &Built) -> Vec<Unused> {
    let mut meshes: Vec<&Mesh> = Vec::new();
    for mesh in built.stages.iter().map(|stage| &stage.partitioned.mesh) {
        if !meshes.contains(&mesh) {
            meshes.push(mesh);
        }
    }
    let mut unused = Vec::new();
    for mesh in meshes {
        let all = built.stages.iter().enumerate().filter(|(_, stage)| stage.partitioned.mesh == *mesh);
        let used: Vec<(usize, BTreeSet<usize>)> =
            all.map(|(number, stage)| (number, used_axes(stage))).collect();
        for (index, axis) in mesh.axes.iter().enumerate().filter(|(_, axis)| axis.size > 1) {
            let without = used.iter().filter(|(_, axes)| !axes.contains(&index)).map(|(number, _)| number);
            let without: Vec<String> = without.map(usize::to_string).collect();
            if without.is_empty() {
                continue;
            }
            let is_whole = without.len() == used.len();
            let in_stages =
                if is_whole { String::new() } else { format!("in stage {}, ", without.join(", ")) };
            let (name, size) = (axis.name.clone(), axis.size);
            let why = format!(
                "{in_stages}nothing is sharded over axis `{name}` of mesh {mesh}: its {size} ranks all compute the same"
            );
            let in_part = !is_whole && built.mesh.axis_named(&name).is_some();
            unused.push(Unused { name, why, in_part });
        }
    }
    unused
}

/// The axes of the mesh of a stage over which a value is sharded, or summed.
fn used_axes(stage: &Stage) -> BTreeSet<usize> {
    let Partitioned { graph, layouts, .. } = &stage.partitioned;
    let axes = graph.value_ids().flat_map(|value| {
        let layout = layouts.sharding(value);
        layout.sharded_axes().into_iter().chain(layout.partial_axes()).collect::<Vec<_>>()
    });
    axes.map(|axis| axis.axis).collect()
}

/// The axes of the mesh over which nothing is sharded, so that their ranks all do the same work, with a sentence each; also
/// those that some of the stages do not use.
pub fn unused_axes(built: &Built) -> Vec<(String, String)> {
    unused(built).into_iter().map(|unused| (unused.name, unused.why)).collect()
}

/// That each axis of the mesh and each line of the plan has an effect.
///
/// # Errors
/// E229 for a line of the plan that changes nothing, and what [`check_axes`] says.
pub fn check_effects(built: &Built) -> Result<()> {
    match built.idle.first() {
        Some(Idle { line, why, help }) => Err(Diagnostic::new("E229", "a line of the plan changes nothing")
            .at(line.clone())
            .expected("a line that changes the step")
            .found(why.clone())
            .help(help.clone())),
        None => check_axes(built),
    }
}

/// That each axis of the mesh, and of the mesh of each stage in a plan, has an effect: without one its ranks would repeat
/// the work of others. The style `replicate(axis=NAME)` says that they should. An axis of the whole mesh that some stages
/// use may be idle in others, which a note says.
///
/// # Errors
/// E009 for an axis that neither the model nor the plan uses.
pub fn check_axes(built: &Built) -> Result<()> {
    // A line for a part of the model does not say that the rest repeats its work too.
    let repeats = |axis: &str| {
        let mut whole = built.plan.entries.iter().filter(|entry| matches!(entry.modules.as_str(), "" | "**"));
        whole.any(|entry| {
            let style = entry.primitive.style().filter(|style| style.kind == Kind::Replicate);
            style.is_some_and(|style| style.axis.as_deref() == Some(axis))
        })
    };
    let is_slip = |unused: &Unused| !unused.in_part && !repeats(&unused.name);
    let Some(Unused { name: axis, why, .. }) = unused(built).into_iter().find(is_slip) else {
        return Ok(());
    };
    let on_purpose = format!(
        "to repeat the work on purpose, put `\"**\" = \"replicate(axis={axis})\"` first, or `replicate(axis={axis})` into \
         the list of `\"**\"`"
    );
    let role = AxisRole::from_axis(&axis);
    let expected = match role {
        Some(role) if role.shards_sequence() => {
            "a model that reads sequences of tokens, or images".to_string()
        }
        Some(_) => format!("a line that shards over it, as `colwise(axis={axis})`"),
        None => {
            format!("an axis with a built-in meaning ({}), or one that the plan names", AxisRole::names())
        }
    };
    let error = Diagnostic::new("E009", format!("nothing uses the axis `{axis}` of the mesh"))
        .at("--mesh")
        .expected(expected)
        .found(why);
    let near = did_you_mean(&axis, AxisRole::ALL.map(AxisRole::axis)).filter(|_| role.is_none());
    Err(match near {
        Some(near) => error.note(on_purpose).help(near),
        None => error.help(format!("leave the axis out; {on_purpose}")),
    })
}

impl Built {
    /// A plan with which the step was built, without its lines that change nothing.
    pub fn used_lines(&self, plan: &Plan) -> Plan {
        let is_used = |entry: &&Entry| self.idle.iter().all(|idle| idle.line != entry.describe());
        Plan { entries: plan.entries.iter().filter(is_used).cloned().collect() }
    }
}

/// The lines of a plan without effect on the training step that was built with them.
///
/// Lines of a built-in plan are defaults, which other lines may override. Some lines have none by what they say:
/// `replicate` repeats work, an axis of one rank divides nothing, a stage ends on `pp=1`, `annotate` is for programs that
/// read the plan, `sync` says where a program of Slapo expects a collective, `trace`, `decompose` of a layer and `fuse`
/// without a backend are for lines with patterns, `fork_rng` is there for programs of Slapo.
pub(crate) fn idle_lines(built: &Built, structured: &Structured, options: &BuildOptions) -> Vec<Idle> {
    let asked = Asked::of(built);
    let recomputed = recomputed(built);
    let in_precision = options.step.precision.is_some() || options.step.f8.is_some();
    let has_stages = built.stages.len() > 1 || built.mesh.axis_named(PIPELINE_AXIS).is_some();
    let again = |entry: &Entry| {
        let inside = |path: &str| entry.modules.is_empty() || matches_around(&entry.modules, path);
        recomputed.iter().any(|(path, stage)| entry.stage.is_none_or(|own| own == *stage) && inside(path))
    };
    let idle = |entry: &Entry| -> Option<(String, &str)> {
        let line = entry.describe();
        let unchanged = |line: &String| structured.unchanged.iter().find(|(own, _)| own == line);
        if let Some((_, why)) = unchanged(&line) {
            return (!(in_precision && matches!(entry.primitive, Primitive::Precision { .. })))
                .then(|| (why.clone(), REMOVE));
        }
        match &entry.primitive {
            Primitive::Style(style) if matches!(style.kind, Kind::Ring | Kind::Auto | Kind::Dispatch) => None,
            Primitive::Style(style) if style.kind == Kind::Replicate && style.input.is_none() => None,
            Primitive::Style(_) | Primitive::Shard { .. } => {
                asked.why_idle(entry, built).map(|why| (why, REMOVE))
            }
            Primitive::Checkpoint { .. } if !again(entry) => Some((
                "the backward pass needs nothing again that its modules compute, beside what is kept anyway"
                    .to_string(),
                "name a module around it",
            )),
            Primitive::Layers { remat: true, .. } if recomputed.is_empty() => {
                Some(("the backward pass needs nothing again".to_string(), REMOVE))
            }
            Primitive::PipelineSplit { .. } | Primitive::Layers { remat: false, .. } if !has_stages => {
                Some((
                    format!("mesh {} has no axis `{PIPELINE_AXIS}`, so there is one stage", built.mesh),
                    "add the axis `pp` to the mesh, or `pp=1` to keep the line for other meshes",
                ))
            }
            Primitive::Offload { what: Offloaded::Optimizer, .. } if built.offload.states.is_empty() => {
                Some(("the optimizer has no states".to_string(), REMOVE))
            }
            Primitive::Offload { what: Offloaded::Activations, .. }
                if !is_read_backward(&built.step, entry) =>
            {
                Some(("the backward pass reads nothing that its modules compute".to_string(), REMOVE))
            }
            _ => None,
        }
    };
    let all: Vec<&Entry> = built.plan.entries.iter().filter(|entry| !is_default(entry)).collect();
    let earlier = repeated(&all, &Modules::of(&structured.model.forward));
    let checked = |(entry, earlier): (&&Entry, Option<&Entry>)| {
        let repeats = earlier.map(|earlier| (format!("{} says so already", earlier.describe()), REMOVE));
        let (why, help) = repeats.or_else(|| idle(entry))?;
        Some(Idle { line: entry.describe(), why, help: help.to_string() })
    };
    all.iter().zip(earlier).filter_map(checked).collect()
}

/// What a line decides, and for which modules and parameters. Of several lines that decide the same, the last one counts.
struct Subject<'m> {
    what: &'static str,
    modules: BTreeSet<&'m str>,
    parameters: BTreeSet<ValueId>,
}

impl<'m> Subject<'m> {
    /// That of a line; `None` for one that may be repeated.
    fn of(entry: &Entry, modules: &'m Modules) -> Option<Subject<'m>> {
        let what = match &entry.primitive {
            Primitive::Style(style) if style.is_storage() => "storage",
            Primitive::Style(style) if !style.is_attention() => "layout",
            Primitive::Offload { what: Offloaded::Optimizer, .. } => "states",
            Primitive::Offload { .. } => "activations",
            Primitive::Precision { .. } => "precision",
            _ => return None,
        };
        let named = modules.named(entry.scope(), &entry.describe()).unwrap_or_default();
        let parameters = modules.parameters_named(entry.scope());
        Some(Subject {
            what,
            modules: named.into_iter().collect(),
            parameters: parameters.into_iter().collect(),
        })
    }

    fn meets(&self, other: &Subject) -> bool {
        let is_apart =
            self.modules.is_disjoint(&other.modules) && self.parameters.is_disjoint(&other.parameters);
        self.what == other.what && !is_apart
    }

    fn is_within(&self, other: &Subject) -> bool {
        self.modules.is_subset(&other.modules) && self.parameters.is_subset(&other.parameters)
    }
}

/// For each line, an earlier one that requests the same of all that it names, with no line between them that decides the
/// same for any of it.
fn repeated<'e>(all: &[&'e Entry], modules: &Modules) -> Vec<Option<&'e Entry>> {
    let subjects: Vec<Option<Subject>> = all.iter().map(|entry| Subject::of(entry, modules)).collect();
    let earlier = |(place, entry): (usize, &&Entry)| {
        let own = subjects[place].as_ref()?;
        let last = |subject: &Option<Subject>| subject.as_ref().is_some_and(|before| before.meets(own));
        let at = subjects[..place].iter().rposition(last)?;
        let is_same = all[at].primitive == entry.primitive && all[at].stage == entry.stage;
        (is_same && own.is_within(subjects[at].as_ref()?)).then_some(all[at])
    };
    all.iter().enumerate().map(earlier).collect()
}

/// The modules of values that the backward pass computes again, with the stages of the model that do.
fn recomputed(built: &Built) -> BTreeSet<(&str, usize)> {
    let graphs = built.stages.iter().map(|stage| &stage.partitioned.graph);
    let again = |graph: &'_ Graph, value: &ValueId| matches!(graph.value(*value).role, Role::RematOf(_));
    graphs
        .flat_map(|graph| {
            let nodes = graph.nodes.iter().filter(move |node| node.results.iter().any(|v| again(graph, v)));
            nodes.map(|node| (node.path.as_str(), node.stage))
        })
        .collect()
}

/// The dimension of the heads in tensors of attention, `[batch, heads, sequence, depth]`.
const HEADS: usize = 1;

/// The usual help.
const REMOVE: &str = "remove the line, or name other modules";

/// Whether the backward pass reads a value of the modules of a line.
fn is_read_backward(step: &Graph, entry: &Entry) -> bool {
    let modules = Modules::of(step);
    let named = modules.named(entry.scope(), &entry.describe()).unwrap_or_default();
    let own = |value: ValueId| {
        let node = step.value(value).definition.map(|(id, _)| step.node(id));
        node.is_some_and(|node| {
            node.phase == Phase::Forward && named.iter().any(|module| is_inside(&node.path, module))
        })
    };
    let backward = step.nodes.iter().filter(|node| node.phase.is_backward());
    backward.flat_map(|node| &node.operands).any(|&value| own(value))
}

/// The requests of the annotations and constraints of a built step, each once.
struct Asked<'b> {
    /// The lines, the mesh, and the dimensions that they shard with the axes that do.
    cuts: BTreeSet<(&'b str, usize, Vec<(usize, usize)>)>,
    meshes: Vec<&'b Mesh>,
}

impl<'b> Asked<'b> {
    fn of(built: &'b Built) -> Asked<'b> {
        let (mut cuts, mut meshes) = (BTreeSet::new(), Vec::new());
        for (number, stage) in built.stages.iter().enumerate() {
            let graph = &stage.partitioned.graph;
            meshes.push(&stage.partitioned.mesh);
            let of_values = graph.values.iter().filter_map(|value| value.annotation.as_ref());
            let of_nodes = graph.nodes.iter().filter_map(|node| node.op.constraint());
            let axes = |annotation: &Annotation| {
                let dims = annotation.sharding.dims.iter().enumerate();
                dims.flat_map(|(dim, entry)| entry.axes.iter().map(move |axis| (dim, axis.axis))).collect()
            };
            let all = of_values.chain(of_nodes).filter(|annotation| !annotation.origin.is_empty());
            cuts.extend(all.map(|annotation| (annotation.origin.as_str(), number, axes(annotation))));
        }
        Asked { cuts, meshes }
    }

    /// Why a line about layouts changes nothing.
    fn why_idle(&self, entry: &Entry, built: &Built) -> Option<String> {
        let line = entry.describe();
        let axis_name = |mesh: &'b Mesh| match (&entry.primitive, &mesh.axes[..]) {
            (Primitive::Style(style), _) => style.axis_name().to_string(),
            (Primitive::Shard { axis: Some(axis), .. }, _) => axis.clone(),
            (_, [only]) => only.name.clone(),
            _ => AxisRole::Model.axis().to_string(),
        };
        let axis_of = |mesh: &&'b Mesh| {
            let name = axis_name(mesh);
            mesh.axes.iter().position(|axis| axis.name == name && axis.size > 1)
        };
        let axes: Vec<Option<usize>> = self.meshes.iter().map(axis_of).collect();
        let kind = entry.primitive.style().map(|style| style.kind);
        let shards = |number: usize, cut: &[(usize, usize)], dim: Option<usize>| {
            let is_it = |&(own, axis): &(usize, usize)| {
                axes[number] == Some(axis) && dim.is_none_or(|dim| dim == own)
            };
            cut.iter().any(is_it)
        };
        let acts = |(origin, number, cut): &&(&str, usize, Vec<(usize, usize)>)| {
            let has_effect = match kind {
                None | Some(Kind::Prepare | Kind::Replicate) => true,
                // The layout that attention has without the line: heads may be sharded over the axis anyway.
                Some(Kind::Ulysses) => axes[*number].is_some() && !shards(*number, cut, Some(HEADS)),
                Some(_) => shards(*number, cut, None),
            };
            origin.contains(&line) && has_effect
        };
        let overridden = built.notes.iter().find(|note| note.is_about(OVERRIDDEN, &line));
        let is_named = |mesh: &&'b Mesh| mesh.axis_named(&axis_name(mesh)).is_some();
        let may_wait =
            axes.iter().all(Option::is_none) && (overridden.is_none() || self.meshes.iter().any(is_named));
        if may_wait || self.cuts.iter().any(|cut| acts(&cut)) {
            return None;
        }
        let storage = entry.primitive.style().filter(|style| style.is_storage());
        Some(match (overridden, storage.map(|style| style.kind)) {
            (Some(note), _) => note.to_string(),
            (None, Some(Kind::Zero1 | Kind::Zero2)) if !has_states(built) => {
                "the optimizer has no states".to_string()
            }
            (None, Some(_)) => "another line shards all that it names over this axis".to_string(),
            (None, None) if kind == Some(Kind::Ulysses) => {
                "the heads of the attention that it names are sharded over its axis anyway".to_string()
            }
            (None, None) => "no tensor of the step is laid out by it".to_string(),
        })
    }
}

/// Whether the optimizer keeps states in the shape of parameters.
fn has_states(built: &Built) -> bool {
    let step = &built.step;
    step.inputs.iter().any(|&input| match step.value(input).role {
        Role::StateOf(parameter) => step.ty(input).shape == step.ty(parameter).shape,
        _ => false,
    })
}
