//! Running named passes on a program in text: what `partita opt` and the tests under `tests/files` share.
//!
//! A [`Unit`] begins as one global graph, read from StableHLO text. Passes take it further: graph passes rewrite it,
//! `propagate` writes the layout of every value into it, `partition` makes it the local graphs of a mesh, and the passes
//! of lowering ([`partita_program::PASSES`]) make those the ranks' programs.

use crate::commands::lower::annotated;
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_ir::{ClassGraph, Graph, Literal, Registry, evaluate, evaluate_ranks, graph_edit, text};
use partita_mesh::Mesh;
use partita_program::{LowerOptions, Lowering, PASSES, PassContext, RegionSizes, find_pass};
use partita_spmd::{Options, Partitioned, microbatch, partition, propagate, split_fused, virtual_ranks};

/// A program on its way through passes.
pub struct Unit {
    state: State,
    /// How the global graph was partitioned, once it was.
    partitioned: Option<Box<Partitioned>>,
}

enum State {
    /// One graph, for the whole mesh.
    Global(Box<Graph>),
    /// Local graphs, or what lowering has made of them.
    Local(Box<Lowering>),
}

/// What passes are told.
#[derive(Clone)]
pub struct OptOptions {
    /// The mesh; by default the one that the text declares.
    pub mesh: Option<Mesh>,
    /// Take the text for the local graph of so many alike ranks, with its collectives written out.
    pub ranks: Option<usize>,
    /// The choices of lowering.
    pub lower: LowerOptions,
}

/// A pass over the global graph.
struct GraphPass {
    name: &'static str,
    about: &'static str,
    run: fn(&Graph, &OptOptions, Option<usize>) -> Result<Graph>,
}

const GRAPH_PASSES: &[GraphPass] = &[
    GraphPass {
        name: "prune",
        about: "drop nodes that no output needs",
        run: |graph, _, _| Ok(graph_edit::prune(graph.clone())),
    },
    GraphPass {
        name: "split-fused",
        about: "split dots whose results are sliced (fused QKV) into dots of slices of the parameter",
        run: |graph, _, _| Ok(split_fused(graph)?.0),
    },
    GraphPass {
        name: "microbatch",
        about: "microbatch=N: run a gradient graph on N parts of the batch, one after the other",
        run: |graph, _, number| microbatch(graph, number.unwrap_or(1)),
    },
    GraphPass {
        name: "propagate",
        about: "give every value a layout, from the ones that are annotated",
        run: |graph, options, _| {
            let mesh = mesh_of(graph, options)?;
            Ok(annotated(graph, &mesh, &propagate(graph, &mesh)?))
        },
    },
];

const PARTITION: (&str, &str) =
    ("partition", "make local graphs, one per class of alike ranks, with their collectives");

/// Every pass, in an order in which they can run: its name and what it does.
pub fn passes() -> Vec<(&'static str, &'static str)> {
    let graph = GRAPH_PASSES.iter().map(|pass| (pass.name, pass.about));
    graph.chain([PARTITION]).chain(PASSES.iter().map(|pass| (pass.name, pass.about))).collect()
}

/// The mesh of the options, else the one of the graph. E017 where there is none, or more than one.
fn mesh_of(graph: &Graph, options: &OptOptions) -> Result<Mesh> {
    match (&options.mesh, &graph.meshes[..]) {
        (Some(mesh), _) => Ok(mesh.clone()),
        (None, [mesh]) => Ok(mesh.clone()),
        (None, meshes) => Err(Diagnostic::new("E017", "this pass needs a mesh")
            .expected("one `sdy.mesh` in the text, or `--mesh AXES`")
            .found(format!("{} meshes", meshes.len()))),
    }
}

impl Unit {
    /// Reads a program.
    ///
    /// # Errors
    /// What reading finds (E14x), and E400 where the ranks of [`OptOptions::ranks`] do not exist.
    pub fn read(source: &str, file: &str, options: &OptOptions) -> Result<Unit> {
        let graph = text::parse_with(source, file, &Registry::default())?;
        let state = match options.ranks {
            None => State::Global(Box::new(graph)),
            Some(ranks) => State::Local(Box::new(Lowering::new(&ClassGraph::alike(graph, ranks))?)),
        };
        Ok(Unit { state, partitioned: None })
    }

    /// Runs one pass, given as `name` or `name=number`.
    ///
    /// # Errors
    /// E017 for a pass that does not exist, or cannot run here; and what the pass finds.
    pub fn run(self, pass: &str, options: &OptOptions, sizes: &dyn RegionSizes) -> Result<Unit> {
        let (name, number) = match pass.split_once('=') {
            None => (pass, None),
            Some((name, number)) => {
                let number = number.parse::<usize>().ok().filter(|&number| number > 0);
                let number = number.ok_or_else(|| {
                    Diagnostic::new("E017", format!("cannot read the pass `{pass}`"))
                        .expected("a name, or a name and a number above 0 such as `microbatch=2`")
                })?;
                (name, Some(number))
            }
        };
        let Unit { state, partitioned } = self;
        match state {
            State::Global(graph) => {
                if let Some(pass) = GRAPH_PASSES.iter().find(|pass| pass.name == name) {
                    return Ok(Unit {
                        state: State::Global(Box::new((pass.run)(&graph, options, number)?)),
                        partitioned,
                    });
                }
                if name != PARTITION.0 {
                    return Err(misplaced(name, "the text is a global graph: run `partition` first"));
                }
                let partitioned = partition(&graph, &mesh_of(&graph, options)?, &Options::default())?;
                let lowering = Lowering::new(&virtual_ranks::class_graphs(&partitioned)?)?;
                Ok(Unit { state: State::Local(Box::new(lowering)), partitioned: Some(Box::new(partitioned)) })
            }
            State::Local(lowering) => {
                let position = find_pass(name)
                    .map_err(|_| misplaced(name, "local graphs go through the passes of lowering"))?;
                let context = PassContext { options: &options.lower, sizes };
                let lowering = lowering.run(&PASSES[position..=position], &context, &mut |_, _| {})?;
                Ok(Unit { state: State::Local(Box::new(lowering)), partitioned })
            }
        }
    }

    /// The program as text; where ranks differ in shapes, that of each class of ranks.
    pub fn print(&self) -> String {
        match &self.state {
            State::Global(graph) => text::print(graph),
            State::Local(lowering) => {
                let classes = lowering.graphs();
                let head = |ranks: &[usize]| match classes.len() {
                    1 => String::new(),
                    _ => format!("// ranks {ranks:?}\n"),
                };
                classes.iter().map(|c| head(&c.ranks) + &lowering.print(c.ranks[0])).collect()
            }
        }
    }

    /// The types of the inputs that [`Unit::interpret`] takes.
    pub fn inputs(&self) -> Vec<partita_ir::TensorType> {
        let of = |graph: &Graph| graph.inputs.iter().map(|&value| graph.ty(value).clone()).collect();
        match (&self.state, &self.partitioned) {
            (_, Some(partitioned)) => of(&partitioned.graph),
            (State::Global(graph), None) => of(graph),
            (State::Local(lowering), None) => of(&lowering.graphs()[0].graph),
        }
    }

    /// What the program computes on these inputs, on the reference interpreter: global tensors, or those of rank 0 where
    /// the text was a local graph.
    ///
    /// # Errors
    /// What the interpreter finds.
    pub fn interpret(&self, inputs: &[Literal]) -> Result<Vec<Literal>> {
        let lowering = match &self.state {
            State::Global(graph) => return evaluate(graph, inputs),
            State::Local(lowering) => lowering,
        };
        let classes = lowering.graphs();
        let ranks: usize = classes.iter().map(|class| class.ranks.len()).sum();
        let local = |rank: usize| -> Vec<Literal> {
            match &self.partitioned {
                None => inputs.to_vec(),
                Some(p) => {
                    let layouts = inputs.iter().zip(&p.inputs);
                    layouts
                        .map(|(value, layout)| virtual_ranks::distribute(value, layout, &p.mesh, rank))
                        .collect()
                }
            }
        };
        let locals: Vec<Vec<Literal>> = (0..ranks).map(local).collect();
        let results = match lowering.programs() {
            Some(set) => partita_program::interpret(set, &locals)?,
            None => {
                let graph = |rank: usize| {
                    let class = classes.iter().find(|class| class.ranks.contains(&rank));
                    &class.expect("every rank is in a class").graph
                };
                evaluate_ranks(&(0..ranks).map(graph).collect::<Vec<_>>(), &locals)?
            }
        };
        let Some(p) = &self.partitioned else {
            return Ok(results.into_iter().next().unwrap_or_default());
        };
        let collected =
            p.graph.outputs.iter().zip(&p.outputs).enumerate().map(|(position, (&value, layout))| {
                let locals: Vec<&Literal> = results.iter().map(|result| &result[position]).collect();
                virtual_ranks::collect(p.graph.ty(value), layout, &p.mesh, &locals)
            });
        collected.collect()
    }
}

/// E017: a pass that does not exist, or has no place here.
fn misplaced(name: &str, why: &str) -> Box<Diagnostic> {
    let names: Vec<&str> = passes().into_iter().map(|(name, _)| name).collect();
    if names.contains(&name) {
        return Diagnostic::new("E017", format!("the pass `{name}` cannot run here")).help(why);
    }
    let mut error = Diagnostic::new("E017", format!("there is no pass `{name}`"))
        .expected(format!("one of {}", names.join(", ")));
    error.help = did_you_mean(name, names);
    error
}
