//! The plan of a session: that of its config, added to the built-in plan of the model where it says nothing about layouts.

use super::Session;
use partita_base::{Diagnostic, Result};
use partita_mesh::Mesh;
use partita_nn::Model;
use partita_schedule::{Entry, Kind, Plan, Primitive, ReadyOptions, Style, choose_attention, with_storage};

/// The plan file that means a search: `--plan auto`.
const AUTO: &str = "auto";

impl Session {
    /// The plan: of the config's file, of its section `[plan]`, or else the built-in one of the model for the mesh. Lines
    /// that say nothing about layouts (see [`sets_layouts`]) are added to the built-in plan, and so is that the whole model
    /// repeats its work along an axis that the built-in plan does not use; a plan without any line means that only the batch
    /// is sharded. The file `auto` means a search.
    ///
    /// # Errors
    /// E005 for a file that cannot be read, and what parsing it says; what [`Session::auto_plan`] says.
    pub fn plan(&self, model: &Model) -> Result<Plan> {
        self.plan_on(model, &self.mesh)
    }

    pub(super) fn plan_on(&self, model: &Model, mesh: &Mesh) -> Result<Plan> {
        let given = match self.given_plan()? {
            Given::Search => return Ok(self.auto_plan(model, mesh)?.best.plan),
            Given::Whole(plan) if !repeats_alone(&plan) => {
                let is_named = !plan.entries.is_empty();
                let plan = if is_named { with_storage(plan, &model.forward, mesh) } else { plan };
                return self.chosen(&plan, model, mesh);
            }
            Given::Whole(plan) | Given::Lines(plan) => plan,
        };
        let config = &self.config.plan;
        let options = ReadyOptions {
            sequence_parallel: config.sequence_parallel,
            vocab_parallel: config.vocab_parallel,
            ..ReadyOptions::default()
        };
        let default = self.config.model.plan(&model.forward, mesh, &options)?;
        let uses = |axis: &str| {
            let mut styles = default.entries.iter().filter_map(|entry| entry.primitive.style());
            styles.any(|style| style.axis_name() == axis)
        };
        if given.entries.iter().filter_map(repeated_axis).any(uses) {
            return self.chosen(&given, model, mesh);
        }
        // A later line about a module replaces the earlier one.
        let (first, last) = given.entries.into_iter().partition(|entry| repeated_axis(entry).is_some());
        self.chosen(&Plan { entries: [first, default.entries, last].concat() }, model, mesh)
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
                let text = partita_base::read_text(path).map_err(|error| {
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

/// The axis along which a line says that the whole model repeats its work: `"**" = "replicate(axis=tp)"`.
fn repeated_axis(entry: &Entry) -> Option<&str> {
    let style = entry.primitive.style().filter(|style| style.kind == Kind::Replicate)?;
    let is_whole = entry.modules == "**" && entry.stage.is_none();
    let axis = style.axis.as_deref()?;
    (is_whole && *style == Style::new(Kind::Replicate).over(axis)).then_some(axis)
}

/// Whether all lines of a plan that decide about layouts say that work is repeated.
fn repeats_alone(plan: &Plan) -> bool {
    let mut deciding = plan.entries.iter().filter(|entry| sets_layouts(entry)).peekable();
    deciding.peek().is_some() && deciding.all(|entry| repeated_axis(entry).is_some())
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
