//! `partita lower`: what a step becomes, stage by stage, and how often its ranks communicate.

use crate::cli::{LowerArgs, Stage};
use crate::commands::kept::kept;
use crate::output::Output;
use crate::output::events::{Bucket, Counts, Overlaps};
use partita::execution;
use partita::layouts::with_layouts;
use partita::session::Session;
use partita_base::{Diagnostic, Result};
use partita_ir::text;
use partita_program::{
    Fusion, Lowering, Overlap, PASSES, Pass, ProgramSet, edge_counts, find_pass, gradient_overlap,
    lower_stages_watched,
};
use partita_schedule::Built;

/// Runs the command.
///
/// # Errors
/// What building and lowering refuse, E014 for a rank that the mesh does not have, E017 for an unknown pass.
pub fn lower(args: &LowerArgs, session: &Session, output: &mut Output) -> Result<()> {
    let session = match args.input_gradient {
        true => &session.clone().with_input_gradient(),
        false => session,
    };
    if args.kept {
        let rows = output.during("lowering the step", || kept(session, args.rank))?;
        output.kept(&rows);
    } else if !args.print_after.is_empty() {
        output.text(after_passes(session, &session.build()?, &args.print_after, args.rank)?);
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
        partita_program::fusion(&stage.classes, &session.lower_options(), &session.device())
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

/// What the passes of lowering make of a rank's graph: after each of the named ones, or after all of them for `all`.
/// E017 for a pass that does not exist, E014 for a rank that does not.
pub fn after_passes(session: &Session, built: &Built, names: &[String], rank: usize) -> Result<String> {
    check_rank(rank, built.mesh.rank_count())?;
    let is_all = names.iter().any(|name| name == "all");
    let wanted: Vec<usize> = names
        .iter()
        .filter(|name| *name != "all")
        .map(|name| find_pass(name))
        .collect::<Result<_>>()
        .map_err(|error| error.at("--print-after"))?;
    let (stage, rank) = built.place_of(rank)?;
    let mut printed = String::new();
    let mut after = |number: usize, pass: &Pass, lowering: &Lowering| {
        let is_wanted = is_all || wanted.iter().any(|&wanted| PASSES[wanted].name == pass.name);
        if number == stage && is_wanted {
            printed +=
                &format!("// after {}: {}\n{}\n", pass.name, pass.about, lowering.print(rank).trim_end());
        }
    };
    let (options, device) = (session.lower_options(), session.device());
    lower_stages_watched(&execution::stages(built), &options, &device, &mut after)?;
    Ok(printed)
}

/// E014 for a rank that does not exist.
pub(crate) fn check_rank(rank: usize, ranks: usize) -> Result<()> {
    if rank < ranks {
        return Ok(());
    }
    Err(Diagnostic::new("E014", format!("there is no rank {rank}"))
        .at("--rank")
        .expected(format!("below {ranks}, the ranks of the mesh")))
}
