//! The plan of a session: that of its config, added to the built-in plan of the model where it says nothing about layouts.

use super::Session;
use partita_base::{Diagnostic, Result};
use partita_ir::{Role, ValueId};
use partita_mesh::{Mesh, rank_list};
use partita_nn::Model;
use partita_schedule::{Built, Entry, Plan, Primitive, ReadyOptions, Stage, choose_attention};

/// The plan file that means a search: `--plan auto`.
const AUTO: &str = "auto";

impl Session {
    /// The plan: of the config's file, of its section `[plan]`, or else the built-in one of the model for the mesh. Lines
    /// that say nothing about layouts (see [`sets_layouts`]) are added to the built-in plan; a plan without any line means
    /// that only the batch is sharded. The file `auto` means a search.
    ///
    /// # Errors
    /// E005 for a file that cannot be read, and what parsing it says; what [`Session::auto_plan`] says.
    pub fn plan(&self, model: &Model) -> Result<Plan> {
        self.plan_on(model, &self.mesh)
    }

    pub(super) fn plan_on(&self, model: &Model, mesh: &Mesh) -> Result<Plan> {
        let given = match self.given_plan()? {
            Given::Search => return Ok(self.auto_plan(model, mesh)?.best.plan),
            Given::Whole(plan) => return self.chosen(&plan, model, mesh),
            Given::Lines(plan) => plan,
        };
        let config = &self.config.plan;
        let options = ReadyOptions {
            sequence_parallel: config.sequence_parallel,
            vocab_parallel: config.vocab_parallel,
            ..ReadyOptions::default()
        };
        let mut plan = self.config.model.plan(&model.forward, mesh, &options)?;
        plan.entries.extend(given.entries);
        self.chosen(&plan, model, mesh)
    }

    /// A plan with the lines that `auto` chooses.
    fn chosen(&self, plan: &Plan, model: &Model, mesh: &Mesh) -> Result<Plan> {
        choose_attention(plan, &model.forward, mesh, &self.config.cluster)
    }

    /// Whether the config requests a search.
    pub(crate) fn searches_plan(&self) -> bool {
        self.config.plan.file.as_ref().is_some_and(|path| path.as_os_str() == AUTO)
    }

    /// Lines that a search keeps: those of the config's file, or else of its section `[plan]`.
    ///
    /// # Errors
    /// E005 for a file that cannot be read, and what parsing says.
    pub(crate) fn pins(&self) -> Result<Plan> {
        match self.given_plan()? {
            Given::Search => self.section(),
            Given::Whole(plan) | Given::Lines(plan) => Ok(plan),
        }
    }

    /// The lines of the section `[plan]`.
    fn section(&self) -> Result<Plan> {
        Plan::from_value(&toml::Value::Table(self.config.plan.styles.clone()), "[plan]")
    }

    /// What the config says about the plan.
    pub(super) fn given_plan(&self) -> Result<Given> {
        let config = &self.config.plan;
        let plan = match &config.file {
            Some(path) if path.as_os_str() == AUTO => return Ok(Given::Search),
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| {
                    Diagnostic::new("E005", format!("no plan file `{}`", path.display()))
                        .found(error.to_string())
                })?;
                Plan::parse(&text, &path.display().to_string())?
            }
            None if config.styles.is_empty() => return Ok(Given::Lines(Plan::default())),
            None => self.section()?,
        };
        match plan.entries.is_empty() || plan.entries.iter().any(sets_layouts) {
            true => Ok(Given::Whole(plan)),
            false => Ok(Given::Lines(plan)),
        }
    }
}

/// What a config says about the plan.
pub(super) enum Given {
    /// Find one.
    Search,
    /// All of it.
    Whole(Plan),
    /// Lines to add to the built-in plan.
    Lines(Plan),
}

/// Whether a line of a plan decides how tensors are sharded for computing. Storage styles (`fsdp`, `zero1`, `zero2`),
/// `checkpoint`, `precision`, `annotate` and stages without a mesh of their own do not: they go with any layouts. A line
/// that changes the modules of the model does, because the built-in plan is for the model as it was.
pub fn sets_layouts(entry: &Entry) -> bool {
    match &entry.primitive {
        _ if entry.stage.is_some() => true,
        Primitive::Style(style) => !style.is_storage() && !style.is_attention(),
        Primitive::PipelineSplit { mesh, ranks } => mesh.is_some() || !ranks.is_empty(),
        Primitive::Checkpoint { pattern } => pattern.is_some(),
        Primitive::Precision { .. } | Primitive::Annotate { .. } | Primitive::Layers { .. } => false,
        Primitive::ForkRng | Primitive::Offload { .. } => false,
        _ => true,
    }
}

/// The axes of the mesh over which nothing is sharded, so that their ranks all do the same work, with a sentence each.
pub(super) fn unused_axes(built: &Built) -> Vec<(String, String)> {
    let mut unused: Vec<(String, String)> = Vec::new();
    for Stage { partitioned, .. } in &built.stages {
        let (mesh, layouts) = (&partitioned.mesh, &partitioned.layouts);
        let mut is_used = vec![false; mesh.axes.len()];
        for value in (0..partitioned.graph.values.len()).map(ValueId::new) {
            let layout = layouts.sharding(value);
            for axis in layout.sharded_axes().into_iter().chain(layout.partial_axes()) {
                is_used[axis.axis] = true;
            }
        }
        for (axis, _) in mesh.axes.iter().zip(is_used).filter(|(axis, is_used)| axis.size > 1 && !is_used) {
            let why = format!(
                "nothing is sharded over axis `{}` of mesh {mesh}: its {} ranks all compute the same",
                axis.name, axis.size
            );
            unused.push((axis.name.clone(), why));
        }
    }
    unused.dedup();
    unused
}

/// The ranks that get no row of the batch, in a sentence; `None` if each gets some.
pub(super) fn without_rows(built: &Built) -> Option<String> {
    built.stages.iter().find_map(|stage| {
        let (graph, mesh) = (&stage.partitioned.graph, &stage.partitioned.mesh);
        let inputs = graph.inputs.iter().zip(&stage.partitioned.inputs);
        inputs.filter(|(input, _)| graph.value(**input).role == Role::Input).find_map(|(&input, sharding)| {
            let value = graph.value(input);
            let is_empty = |rank: &usize| sharding.local_shape(mesh, &value.ty.shape, *rank).contains(&0);
            let empty: Vec<usize> =
                (0..mesh.rank_count()).filter(is_empty).map(|rank| stage.ranks[rank]).collect();
            let rows = value.ty.shape.first().copied().unwrap_or(0);
            (!empty.is_empty()).then(|| {
                format!(
                    "ranks {} get nothing of `{}`, whose {rows} rows are too few for mesh {mesh}",
                    rank_list(&empty),
                    value.name
                )
            })
        })
    })
}
