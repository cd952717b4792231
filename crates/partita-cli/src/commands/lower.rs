//! `partita lower`: what a step becomes, stage by stage, and how often its ranks communicate.

use crate::command::{Application, Command, ConfigFlags, OF_A_STEP, Unread};
use crate::commands::kept::kept;
use crate::output::Output;
use crate::output::events::{Bucket, Counts, Overlaps};
use crate::rank::check_rank;
use crate::run::{Ending, session};
use clap::{Args, ValueEnum};
use partita::execution;
use partita::layouts::{annotated, with_layouts};
use partita::session::Session;
use partita_base::{Diagnostic, Result};
use partita_ir::pass::{Pass, no_pass};
use partita_ir::text;
use partita_program::{
    Back, Fusion, Lowering, Overlap, PASSES, ProgramSet, edge_counts, gradient_overlap, lower_stages_watched,
};
use partita_schedule::Built;
use partita_schedule::passes::{self, Building};

/// Flags of `lower`.
#[derive(Args, Clone, Debug)]
pub struct LowerArgs {
    /// A config file, a bundled config, a model by name, or a file with a model: see `partita --help`.
    pub config: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
    /// Count the collectives of a rank, and what crosses between pipeline stages, instead of printing the step.
    #[arg(long)]
    pub counts: bool,
    /// How far the step is lowered.
    #[arg(long, value_enum, default_value_t = Stage::Local)]
    pub stage: Stage,
    /// The rank whose step is printed, or whose collectives are counted.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub rank: usize,
    /// Also compute the gradient with respect to the first input with a float type.
    #[arg(long)]
    pub input_gradient: bool,
    /// With `--stage program`: also explain which elementwise ops were not fused with the ops whose results they read, and
    /// into how many chunks the logits are split.
    #[arg(long, conflicts_with = "counts")]
    pub why: bool,
    /// Instead of printing the step, list how many bytes of activations a rank keeps for the backward pass of a microbatch,
    /// and how much work is done again for it: the choices of --activation-limit.
    #[arg(long, conflicts_with_all = ["counts", "stage", "why"])]
    pub activation_budgets: bool,
    /// Print the step after the named passes, from the model on: the graph of one device, then the rank's graph, then its
    /// program; `all` for every pass. `partita opt --list` lists the names.
    #[arg(long, value_name = "PASS,..", value_delimiter = ',', conflicts_with_all = ["counts", "stage"])]
    pub print_after: Vec<String>,
}

/// The stages of lowering.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Stage {
    /// The step as written for one device.
    Global,
    /// With a layout on every value.
    Sharded,
    /// One rank's graph, with its collectives.
    Local,
    /// One rank's instructions, with their memory.
    Program,
}

impl Command for LowerArgs {
    const NAME: &'static str = "lower";
    const ABOUT: &'static str = "Print a step as a graph or as programs, or count its collectives";
    const UNREAD: Unread = OF_A_STEP;

    fn flags(&self) -> Option<(&ConfigFlags, Unread)> {
        Some((&self.flags, Self::UNREAD))
    }

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        lower(self, &session(&self.config, self.flags.overrides()?, output)?, output)?;
        Ok(Ending::Done)
    }
}

/// Runs the command.
///
/// # Errors
/// What building and lowering refuse, E014 for a rank that the mesh does not have, E017 for an unknown pass.
fn lower(args: &LowerArgs, session: &Session, output: &mut Output) -> Result<()> {
    let session = match args.input_gradient {
        true => &session.clone().with_input_gradient(),
        false => session,
    };
    if args.activation_budgets {
        let rows = output.during("lowering the step", || kept(session, args.rank))?;
        output.kept(&rows);
    } else if !args.print_after.is_empty() {
        output.text(after_passes(session, &args.print_after, args.rank)?);
    } else if args.counts {
        let (programs, edges) = output.during("lowering the step", || {
            let built = session.build()?;
            Ok::<_, Box<Diagnostic>>((session.lower(&built)?, edge_counts(&execution::stages(&built))))
        })?;
        let overlaps = overlap(&programs, args.rank)?;
        output.counts(&Counts::of_rank(&programs, args.rank)?);
        output.edges(&edges);
        output.overlaps(&overlaps);
    } else {
        let working = output.working("lowering the step");
        let built = session.build()?;
        let printed = stage(session, &built, args.stage, args.rank)?;
        drop(working);
        output.text(printed);
        if args.why {
            output.text(fusion(session, &built)?.to_string());
        }
    }
    Ok(())
}

/// The compute of a rank that overlaps with each of its gradient buckets. E014 for a rank that the mesh does not have.
pub fn overlap(programs: &ProgramSet, rank: usize) -> Result<Overlaps> {
    check_rank(rank, programs.rank_count())?;
    let bucket = |overlap: Overlap| Bucket {
        kind: overlap.kind.name(),
        first: overlap.what,
        tensors: overlap.tensors as u64,
        bytes: overlap.bytes as u64,
        flops: overlap.flops,
    };
    Ok(Overlaps { rank, buckets: gradient_overlap(programs, rank).into_iter().map(bucket).collect() })
}

/// What fusion makes of a built step, and what keeps elementwise ops apart.
pub fn fusion(session: &Session, built: &Built) -> Result<Fusion> {
    let of_stage = |stage: &partita_schedule::Stage| {
        partita_program::fusion(&stage.classes, &session.lower_options(), &*session.target())
    };
    let mut stages = built.stages.iter().map(of_stage);
    let first = stages.next().expect("a step has a stage")?;
    stages.try_fold(first, |all, stage| Ok(all.with(stage?)))
}

/// A built step at a stage as text: that of this rank, if ranks differ. E014 for a rank that the mesh does not have.
pub fn stage(session: &Session, built: &Built, stage: Stage, rank: usize) -> Result<String> {
    check_rank(rank, built.mesh.rank_count())?;
    Ok(match stage {
        Stage::Global => text::print(&built.step),
        Stage::Sharded => text::print(&with_layouts(&built.stages[built.place_of(rank)?.0].partitioned)),
        Stage::Local => text::print(&built.local(rank)?),
        Stage::Program => session.lower(built)?.display(rank).to_string(),
    })
}

/// What passes make of the step: after each of the named ones, or after all of them for `all`. Those that rewrite the graph
/// of one device come first, then those of the rank's own graph and program. E017 for a pass that does not exist, E014 for
/// a rank that does not.
pub fn after_passes(session: &Session, names: &[String], rank: usize) -> Result<String> {
    check_rank(rank, session.mesh().rank_count())?;
    let known = || passes::PASSES.iter().map(|pass| pass.name).chain(PASSES.iter().map(|pass| pass.name));
    let is_known = |name: &&String| *name == "all" || known().any(|known| known == **name);
    if let Some(name) = names.iter().find(|name| !is_known(name)) {
        return Err(no_pass(name, known()).at("--print-after"));
    }
    let is_wanted = |pass: &str| names.iter().any(|name| name == "all" || name == pass);
    let mut printed = String::new();
    let mut print = |name: &str, about: &str, text: &str| {
        printed += &format!("// after {name}: {about}\n{}\n", text.trim_end());
    };
    let built = session.build_watched(&mut |pass, building| {
        if is_wanted(pass.name) {
            print(pass.name, pass.about, &printed_at(building, rank)?);
        }
        Ok(())
    })?;
    let (stage, rank) = built.place_of(rank)?;
    let mut after = |number: usize, pass: &Pass<Back>, lowering: &Lowering| {
        if number == stage && is_wanted(pass.name) {
            print(pass.name, pass.about, &lowering.print(rank));
        }
        Ok(())
    };
    let (options, target) = (session.lower_options(), session.target());
    lower_stages_watched(&execution::stages(&built), &options, &*target, &mut after)?;
    Ok(printed)
}

/// A step between two passes as text: the graph of one device, those of all stages once they are laid out, or the local
/// graph of this rank.
fn printed_at(building: &Building, rank: usize) -> Result<String> {
    let own = building.stages().iter().find_map(|stage| Some((stage, stage.position(rank)?)));
    if let Some((stage, rank)) = own {
        return Ok(text::print(&stage.local(rank)?));
    }
    let stages: String = building
        .layouts()
        .map(|of| text::print(&annotated(&of.graph, &of.layouts.mesh, &of.layouts)))
        .collect();
    Ok(if stages.is_empty() { text::print(building.graph()) } else { stages })
}
