//! The whole step as a problem for the solver, and what a solution means.

use super::choices::{Choice, Context, complete, is_moved_once, once};
use super::prices::{Forbidden, Priced, Prices};
use crate::solver::{Effort, Outcome, Problem, Solution, solve};
use partita_base::{Diagnostic, Result};
use partita_ir::{FactorKind, Graph, Op, Phase, Role, Rule, ValueId};
use partita_mesh::{AxisRef, AxisRole, Mesh, Sharding, Step};
use partita_spmd::propagate;
use partita_spmd::units::{Units, rules_of};
use std::collections::BTreeSet;

/// Options of the search.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The cost model.
    pub prices: Prices,
    /// Collectives that must not occur.
    pub forbidden: Forbidden,
    /// Keeps every parameter whole: data parallelism.
    pub whole_parameters: bool,
    /// Whether several axes may shard one dimension of a tensor.
    pub mixed_axes: bool,
    /// Whether every axis must share the work of a contraction, as in Alpa, whose formula has no price for repeated work.
    pub split_contractions: bool,
    /// Whether a result that several ops read may be kept with another dimension sharded, exchanged once for all of them, as
    /// Alpa's compiler does. A plan has no line for it, so layouts that are to be written as one do without.
    pub moves_shared: bool,
    /// The axes that keep sharding the batch.
    pub batch_axes: Vec<String>,
    /// How often a step does what its graph does but the update and the reduction of gradients: the microbatches, where the
    /// graph is that of one of them.
    pub repeats: usize,
    /// The most bytes on a rank of parameters, gradients, optimizer states and saved activations.
    pub memory_limit: Option<f64>,
    /// How much work the solver may do.
    pub effort: Effort,
}

impl Options {
    /// A search with these prices, on which `dp` and `fsdp` shard the batch.
    pub fn new(prices: Prices) -> Options {
        Options {
            split_contractions: matches!(prices, Prices::Alpa { .. }),
            moves_shared: matches!(prices, Prices::Alpa { .. }),
            prices,
            forbidden: Forbidden::default(),
            whole_parameters: false,
            mixed_axes: true,
            batch_axes: [AxisRole::Data, AxisRole::Parameters].map(|role| role.axis().to_string()).to_vec(),
            repeats: 1,
            memory_limit: None,
            effort: Effort::default(),
        }
    }
}

/// What a variable of the problem chooses for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Subject {
    Input(ValueId),
    Node(usize),
}

/// The choices of a node, by the choice of its variable.
#[derive(Clone, Debug)]
struct Placed {
    variable: usize,
    choices: Vec<Choice>,
}

/// The layouts of a value, by the choice of its variable.
#[derive(Clone, Debug)]
struct Offered {
    variable: usize,
    layouts: Vec<Sharding>,
    /// Whether the value is one number everywhere, which any rank can write in any layout.
    is_fill: bool,
}

/// A step as a problem.
pub struct Table<'a> {
    graph: &'a Graph,
    mesh: &'a Mesh,
    options: &'a Options,
    /// The problem.
    pub problem: Problem,
    subjects: Vec<Subject>,
    placed: Vec<Placed>,
    offered: Vec<Option<Offered>>,
}

/// A collective that a solution contains.
#[derive(Clone, PartialEq, Debug)]
pub struct Exchange {
    /// The value that is exchanged.
    pub value: ValueId,
    /// The step.
    pub step: Step,
    /// What it costs.
    pub cost: f64,
}

/// A solved step.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// The solution of the problem.
    pub solution: Solution,
    /// The layout of each value, in which it is kept.
    pub layouts: Vec<Sharding>,
    /// The values that are reduced where they are computed.
    pub reduced: Vec<ValueId>,
    /// The collectives, in execution order.
    pub exchanges: Vec<Exchange>,
    /// The cost of each node: its work, the reshards of its operands and of its results.
    pub node_costs: Vec<f64>,
}

impl<'a> Table<'a> {
    /// The problem of a step on a mesh. Annotations of the step are kept.
    ///
    /// # Errors
    /// Those of [`propagate()`].
    pub fn new(graph: &'a Graph, mesh: &'a Mesh, options: &'a Options) -> Result<Table<'a>> {
        let rules = rules_of(graph);
        let units = Units::of(graph, &rules);
        let base = propagate(graph, mesh)?;
        let axes: Vec<AxisRef> =
            (0..mesh.axes.len()).map(|axis| mesh.full_axis(axis)).filter(|axis| axis.size > 1).collect();
        let (fixed, free): (Vec<AxisRef>, Vec<AxisRef>) =
            axes.into_iter().partition(|axis| options.batch_axes.contains(&mesh.axes[axis.axis].name));
        let priced = Priced::new(mesh, &options.prices, options.forbidden);
        let mut readers = vec![BTreeSet::new(); graph.values.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            node.operands.iter().for_each(|operand| _ = readers[operand.index()].insert(index));
        }
        let count: Vec<usize> = readers.iter().map(BTreeSet::len).collect();
        let context = Context {
            graph,
            rules: &rules,
            units: &units,
            base: &base,
            fixed: &fixed,
            free: &free,
            priced: &priced,
            mixed_axes: options.mixed_axes,
            split_contractions: options.split_contractions,
            moves_shared: options.moves_shared,
            readers: &count,
            repeats: options.repeats as f64,
        };
        let table = Table {
            graph,
            mesh,
            options,
            problem: Problem { memory_limit: options.memory_limit, ..Problem::default() },
            subjects: Vec::new(),
            placed: Vec::new(),
            offered: vec![None; graph.values.len()],
        };
        Ok(table.filled(&context))
    }

    fn filled(mut self, context: &Context) -> Table<'a> {
        self.inputs(context);
        for index in 0..self.graph.nodes.len() {
            self.node(context, index);
        }
        self.outputs(context);
        self.memory();
        self
    }

    fn inputs(&mut self, context: &Context) {
        for &input in &self.graph.inputs {
            let value = self.graph.value(input);
            let followed = match value.role {
                Role::StateOf(of) if self.graph.ty(of).shape == value.ty.shape => {
                    self.offered[of.index()].clone()
                }
                _ => None,
            };
            let offered = followed.unwrap_or_else(|| {
                let mut layouts = context.of_input(input);
                if self.options.whole_parameters && value.role == Role::Param {
                    layouts.truncate(1);
                }
                let variable = self.problem.variable(vec![0.0; layouts.len()]);
                self.subjects.push(Subject::Input(input));
                Offered { variable, layouts, is_fill: false }
            });
            self.offered[input.index()] = Some(offered);
        }
    }

    fn offered(&self, value: ValueId) -> &Offered {
        self.offered[value.index()].as_ref().expect("values are defined before they are read")
    }

    fn node(&mut self, context: &Context, index: usize) {
        let node = &self.graph.nodes[index];
        let choices = context.of_node(index);
        let is_splat = matches!(&node.op, Op::Constant(constant) if constant.value.is_splat());
        let repeats = matches!(node.op, Op::BroadcastInDim(_)) && self.graph.ty(node.operands[0]).rank() == 0;
        let is_fill = is_splat || repeats;
        // A transpose for several readers chooses: it exchanges once what each of them would.
        let is_shared = node.results.iter().any(|result| context.readers[result.index()] > 1);
        let chooses =
            is_fill || choices.is_empty() || context.moves_shared && is_shared && is_moved_once(&node.op);
        let leader = self.leader(&context.rules[index], index).filter(|_| !chooses);
        let (variable, choices) = match leader {
            Some(operand) => {
                let Offered { variable, layouts, .. } = self.offered(node.operands[operand]).clone();
                let chosen: Vec<Choice> = layouts
                    .iter()
                    .map(|layout| following(context, index, operand, layout, &choices))
                    .collect();
                (variable, chosen)
            }
            None => {
                let variable = self.problem.variable(vec![0.0; choices.len()]);
                self.subjects.push(Subject::Node(index));
                (variable, choices)
            }
        };
        self.problem.variables[variable]
            .cost
            .iter_mut()
            .zip(&choices)
            .for_each(|(cost, choice)| *cost += choice.cost);
        for (position, &operand) in node.operands.iter().enumerate() {
            if node.operands[..position].contains(&operand) {
                continue;
            }
            let Offered { variable: from, layouts, is_fill } = self.offered(operand).clone();
            let often = context.repeats_of(node);
            let price = |have: &Sharding, choice: &Choice| {
                let need = &choice.required[position];
                match is_fill && !need.is_partial() {
                    true => 0.0,
                    false => often * context.reshard(operand, have, need),
                }
            };
            let costs: Vec<f64> = layouts
                .iter()
                .flat_map(|have| choices.iter().map(move |choice| price(have, choice)))
                .collect();
            if costs.iter().any(|&cost| cost != 0.0) {
                self.problem.edge(from, variable, costs);
            }
        }
        for (place, &result) in node.results.iter().enumerate() {
            let layouts = choices.iter().map(|choice| choice.kept[place].clone()).collect();
            self.offered[result.index()] = Some(Offered { variable, layouts, is_fill });
        }
        self.placed.push(Placed { variable, choices });
    }

    /// The operand that an elementwise op follows: a parameter or state in the update, else the one computed last.
    fn leader(&self, rule: &Rule, index: usize) -> Option<usize> {
        let node = &self.graph.nodes[index];
        let elementwise = rule.factors.iter().all(|factor| factor.kind == FactorKind::Pass);
        if !elementwise || matches!(node.op, Op::ShardingConstraint(_)) {
            return None;
        }
        let needed: BTreeSet<usize> = rule.results.iter().flatten().flatten().copied().collect();
        let covers = |&operand: &usize| {
            let has: BTreeSet<usize> = rule.operands[operand].iter().flatten().copied().collect();
            !needed.is_empty() && needed.is_subset(&has) && !self.offered(node.operands[operand]).is_fill
        };
        let rank = |&operand: &usize| {
            let value = self.graph.value(node.operands[operand]);
            let kept = matches!(value.role, Role::Param | Role::StateOf(_)) && node.phase == Phase::Update;
            (kept, value.definition.map(|(node, _)| node))
        };
        (0..node.operands.len()).filter(covers).max_by_key(rank)
    }

    fn outputs(&mut self, context: &Context) {
        let mut aliased = vec![false; self.graph.outputs.len()];
        for &(input, output) in &self.graph.aliases {
            aliased[output] = true;
            let (value, input) = (self.graph.outputs[output], self.graph.inputs[input]);
            let (from, to) = (self.offered(value).clone(), self.offered(input).clone());
            let price = |have: &Sharding, need: &Sharding| context.reshard(value, have, need);
            let costs =
                from.layouts.iter().flat_map(|have| to.layouts.iter().map(move |need| price(have, need)));
            let costs = costs.collect();
            self.problem.edge(from.variable, to.variable, costs);
        }
        for (position, &value) in self.graph.outputs.iter().enumerate() {
            if aliased[position] {
                continue;
            }
            let Offered { variable, layouts, .. } = self.offered(value).clone();
            for (choice, layout) in layouts.iter().enumerate() {
                self.problem.variables[variable].cost[choice] +=
                    context.reshard(value, layout, &complete(layout));
            }
        }
    }

    /// Bytes of parameters with their gradients, of optimizer states, and of activations that the backward pass reads.
    fn memory(&mut self) {
        let is_forward = |value: ValueId| match self.graph.value(value).definition {
            Some((node, _)) => self.graph.node(node).phase == Phase::Forward,
            None => false,
        };
        let mut saved: BTreeSet<ValueId> = BTreeSet::new();
        for node in self.graph.nodes.iter().filter(|node| node.phase.is_backward()) {
            saved.extend(node.operands.iter().copied().filter(|&value| is_forward(value)));
        }
        for value in self.graph.value_ids() {
            let Some(offered) = self.offered[value.index()].clone() else { continue };
            let copies = match self.graph.value(value).role {
                Role::Param => 2.0,
                Role::StateOf(_) => 1.0,
                _ if saved.contains(&value) && !offered.is_fill => 1.0,
                _ => continue,
            };
            let ty = self.graph.ty(value);
            for (choice, layout) in offered.layouts.iter().enumerate() {
                let bytes = layout.largest_local_elements(self.mesh, &ty.shape) * ty.dtype.size_bytes();
                self.problem.variables[offered.variable].memory[choice] += copies * bytes as f64;
            }
        }
    }

    /// The best layouts.
    ///
    /// # Errors
    /// E520 if no layouts fit the memory limit, E521 if requested layouts exclude each other, E522 if the effort did not
    /// suffice.
    pub fn solve(&self) -> Result<Found> {
        match solve(&self.problem, &self.options.effort) {
            Outcome::Solved(solution) => Ok(self.read(solution)),
            Outcome::TooLarge { least_memory, .. } => {
                let limit = self.problem.memory_limit.unwrap_or(f64::INFINITY);
                Err(Diagnostic::new("E520", format!("no layouts on mesh {} fit the memory limit", self.mesh))
                    .expected(format!("at most {limit:.0} bytes on a rank"))
                    .found(format!("at least {least_memory:.0} bytes, {:.0} too many", least_memory - limit))
                    .help("use more ranks, more microbatches, or recompute activations with `checkpoint`"))
            }
            Outcome::Conflict(pair) => {
                let names: Vec<String> = match pair {
                    Some((one, other)) if one == other => vec![self.name(one)],
                    Some((one, other)) => vec![self.name(one), self.name(other)],
                    None => Vec::new(),
                };
                let mut error = Diagnostic::new("E521", "the requested layouts exclude each other")
                    .expected("layouts that can be resharded into each other without forbidden collectives");
                if !names.is_empty() {
                    error = error.found(format!("none for {}", names.join(" and ")));
                }
                Err(error.help("remove a line of the plan, or allow a collective"))
            }
            Outcome::Unknown => {
                Err(Diagnostic::new("E522", "no layouts within the memory limit were found with this effort")
                    .help("raise the memory limit, or let the search try more branches"))
            }
        }
    }

    fn name(&self, variable: usize) -> String {
        match self.subjects[variable] {
            Subject::Input(value) => format!("`{}`", self.graph.describe(value)),
            Subject::Node(index) => format!("`{}`", self.graph.describe(self.graph.nodes[index].results[0])),
        }
    }

    /// The variable of a value.
    pub fn variable_of(&self, value: ValueId) -> usize {
        self.offered(value).variable
    }

    /// The least cost if a variable must not make the choice of a solution; infinite if it has no other.
    pub fn without(&self, variable: usize, solution: &Solution) -> f64 {
        let mut problem = self.problem.clone();
        problem.variables[variable].cost[solution.choices[variable]] = f64::INFINITY;
        match solve(&problem, &Effort { most_branches: 1, ..self.options.effort }) {
            Outcome::Solved(other) => other.cost,
            _ => f64::INFINITY,
        }
    }

    fn read(&self, solution: Solution) -> Found {
        let layout = |value: ValueId| {
            let offered = self.offered(value);
            offered.layouts[solution.choices[offered.variable]].clone()
        };
        let priced = Priced::new(self.mesh, &self.options.prices, self.options.forbidden);
        let mut exchanges = Vec::new();
        let mut reduced = Vec::new();
        let mut done: BTreeSet<(ValueId, Sharding, Sharding)> = BTreeSet::new();
        let mut move_to = |value: ValueId, from: &Sharding, to: &Sharding| -> f64 {
            if !done.insert((value, from.clone(), to.clone())) {
                return 0.0;
            }
            let ty = self.graph.ty(value);
            let steps = priced.steps(&ty.shape, ty.dtype.size_bytes(), from, to);
            let is_local = |step: &Step| matches!(step, Step::Slice { .. } | Step::ToPartial { .. });
            let total = steps.iter().map(|(_, cost)| cost).sum();
            exchanges.extend(
                steps.into_iter().filter(|(step, _)| !is_local(&step.step)).map(|(step, cost)| Exchange {
                    value,
                    step: step.step,
                    cost,
                }),
            );
            total
        };
        let mut node_costs = Vec::with_capacity(self.graph.nodes.len());
        for (node, placed) in self.graph.nodes.iter().zip(&self.placed) {
            let choice = &placed.choices[solution.choices[placed.variable]];
            let mut cost = priced.op(self.graph, node, &choice.required, &choice.produced, choice.ways);
            for (position, &operand) in node.operands.iter().enumerate() {
                if !self.offered(operand).is_fill {
                    cost += move_to(operand, &layout(operand), &choice.required[position]);
                }
            }
            let repeats = self.options.repeats as f64;
            cost *= if node.phase == Phase::Update { 1.0 } else { repeats };
            let often = if once(node) { 1.0 } else { repeats };
            for (&value, (produced, kept)) in
                node.results.iter().zip(choice.produced.iter().zip(&choice.kept))
            {
                if produced.is_partial() && !kept.is_partial() {
                    reduced.push(value);
                }
                cost += often * move_to(value, produced, kept);
            }
            node_costs.push(cost);
        }
        let mut aliased = vec![None; self.graph.outputs.len()];
        self.graph
            .aliases
            .iter()
            .for_each(|&(input, output)| aliased[output] = Some(self.graph.inputs[input]));
        for (&value, input) in self.graph.outputs.iter().zip(aliased) {
            let to = input.map_or_else(|| complete(&layout(value)), layout);
            move_to(value, &layout(value), &to);
        }
        let layouts = self.graph.value_ids();
        let layouts = layouts
            .map(|value| match &self.offered[value.index()] {
                Some(_) => layout(value),
                None => Sharding::replicated(self.graph.ty(value).rank()),
            })
            .collect();
        Found { solution, layouts, reduced, exchanges, node_costs }
    }
}

/// The choice of an op that follows an operand in this layout: one that reads the operand as it is, if there is one; of
/// these, for several readers, one that reduces what they would reduce each; of these the cheapest, with the operand's
/// reshard; of equal ones that with most shards.
fn following(
    context: &Context,
    index: usize,
    operand: usize,
    layout: &Sharding,
    choices: &[Choice],
) -> Choice {
    let node = &context.graph.nodes[index];
    let value = node.operands[operand];
    let is_shared = node.results.iter().any(|result| context.readers[result.index()] > 1);
    let rank = |choice: &&Choice| {
        let needed = &choice.required[operand];
        let moved = context.reshard(value, layout, needed);
        (
            (
                needed != layout,
                context.moves_shared && is_shared && choice.kept.iter().any(Sharding::is_partial),
            ),
            moved + choice.cost,
            std::cmp::Reverse(choice.ways),
            choice.kept != choice.produced,
        )
    };
    let better = |a: &&Choice, b: &&Choice| {
        let (a, b) = (rank(a), rank(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)).then(a.3.cmp(&b.3))
    };
    choices.iter().min_by(better).expect("an op has a strategy").clone()
}
