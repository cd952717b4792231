//! Static checks of a program set, before it runs.
//!
//! | code | error |
//! |---|---|
//! | E401 | members start collectives in different orders |
//! | E402 | a rank that is no member starts a collective, or a member never does |
//! | E403 | a tensor has another type or shape than its collective or region expects |
//! | E404 | a start without a wait, a wait without a start, or one of them twice |
//! | E405 | deadlock: ranks wait for each other |
//! | E406 | a buffer is read before it is written |
//! | E407 | a buffer is used outside its span, or while a collective owns it |
//! | E408 | live buffers overlap, or are outside the arena |
//! | E409 | a permutation sends twice to one member, or to none |
//! | E420 | a rank pauses less often than others, or a port names a pause that does not exist |

use crate::ALIGNMENT_BYTES;
use crate::alike::alike;
use crate::collective::{Collective, CollectiveKind, CollectiveOp, Transfer};
use crate::passes::memory::may_overwrite;
use crate::program::{
    Action, Buffer, BufferId, BufferKind, Instruction, Move, Program, ProgramSet, Start, View,
};
use indexmap::IndexMap;
use partita_base::{CollectiveId, Diagnostic, Result};
use partita_ir::TensorType;
use partita_mesh::BoxMove;
use std::sync::Arc;

/// Figures of a program set that passed all checks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckReport {
    /// Size of each rank's arena in bytes.
    pub peak_bytes: Vec<usize>,
    /// Persistent bytes of each rank's arena.
    pub persistent_bytes: Vec<usize>,
    /// Number of instructions of each rank.
    pub instructions: Vec<usize>,
    /// Number of collectives of two or more ranks.
    pub meetings: usize,
}

/// Checks the programs of all ranks against each other and against their memory maps. Errors are
/// E401 to E409 and E420, listed at the head of this file.
///
/// The caller is a part of both: all ranks meet him at each pause, and there he writes inputs and reads outputs as their
/// ports say ([`Port::at`](crate::Port::at)).
///
/// A program is checked once for all ranks of its class. If all classes start and wait for the same
/// buckets in the same order, as in lowered programs, and each bucket's groups partition the ranks,
/// then no deadlock or mismatch is possible. Otherwise the calls of one rank of each set of [`alike`] ranks
/// are compared, and where these do not match, those of every rank, one by one.
pub fn check(set: &ProgramSet) -> Result<CheckReport> {
    let mut before: Option<&Collective> = None;
    for collective in &set.collectives {
        let is_alike = |other: &Collective| {
            Arc::ptr_eq(&other.transfers, &collective.transfers)
                && (other.kind, other.members.len()) == (collective.kind, collective.members.len())
        };
        if !before.replace(collective).is_some_and(is_alike) {
            check_collective(collective)?;
        }
    }
    check_pauses(set)?;
    for program in &set.programs {
        check_pairing(set, program)?;
        check_types(set, program)?;
    }
    check_class_types(set)?;
    if !is_one_order(set) && !alike_ranks_agree(set) {
        let calls = calls_of_ranks(set);
        check_membership(set, &calls)?;
        check_order(set, &calls)?;
        check_progress(set, &calls)?;
    }
    for program in &set.programs {
        check_accesses(set, program)?;
        check_map(program)?;
    }
    let by_rank = |of: &dyn Fn(&Program) -> usize| -> Vec<usize> {
        let mut values = vec![0; set.rank_count()];
        for program in &set.programs {
            let value = of(program);
            program.ranks.iter().for_each(|&rank| values[rank] = value);
        }
        values
    };
    Ok(CheckReport {
        peak_bytes: by_rank(&|p| p.arena_bytes),
        persistent_bytes: by_rank(&Program::persistent_bytes),
        instructions: by_rank(&|p| p.instructions.len()),
        meetings: set.collectives.iter().filter(|c| c.members.len() > 1).count(),
    })
}

/// A rank's part in a collective, or in a pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call<C = CollectiveId> {
    Start(C),
    Wait(C),
    /// All ranks meet the caller.
    Pause,
}

impl<C> Call<C> {
    /// The call with another name for its collective.
    fn named<N>(self, name: impl FnOnce(C) -> Option<N>) -> Option<Call<N>> {
        Some(match self {
            Call::Start(id) => Call::Start(name(id)?),
            Call::Wait(id) => Call::Wait(name(id)?),
            Call::Pause => Call::Pause,
        })
    }
}

impl Call {
    fn of(instruction: &Instruction) -> Option<Call> {
        match &instruction.action {
            Action::Compute(_) | Action::Move(_) | Action::Moved(_) => None,
            Action::Start(start) => Some(Call::Start(start.collective)),
            Action::Wait(collective) => Some(Call::Wait(*collective)),
        }
    }

    /// The calls of a program, each with the number of the instruction that makes it, or before which it pauses.
    fn all(program: &Program) -> Vec<(usize, Call)> {
        let mut calls = Vec::new();
        let mut pauses = program.pauses.iter().copied().peekable();
        for index in 0..=program.instructions.len() {
            while pauses.next_if(|&pause| pause <= index).is_some() {
                calls.push((index, Call::Pause));
            }
            calls.extend(program.instructions.get(index).and_then(Call::of).map(|call| (index, call)));
        }
        calls
    }
}

/// The collectives that one rank starts and waits for, and its pauses, each with the number of the instruction.
struct Calls<'a> {
    rank: usize,
    program: &'a Program,
    calls: Vec<(usize, Call)>,
}

/// The collectives of each bucket: one per group.
fn by_bucket(set: &ProgramSet) -> IndexMap<usize, Vec<usize>> {
    let mut buckets: IndexMap<usize, Vec<usize>> = IndexMap::new();
    for (number, collective) in set.collectives.iter().enumerate() {
        buckets.entry(collective.bucket).or_default().push(number);
    }
    buckets
}

/// Whether all classes start and wait for the same buckets, each once and in one order, and each
/// bucket's groups partition the ranks.
fn is_one_order(set: &ProgramSet) -> bool {
    let bucket = |id: CollectiveId| Some(set.collectives.get(id.index()).map(|c| c.bucket));
    let calls = |program: &Program| -> Vec<Call<Option<usize>>> {
        Call::all(program).into_iter().filter_map(|(_, call)| call.named(bucket)).collect()
    };
    let mut all = set.programs.iter().map(calls);
    let Some(first) = all.next() else { return true };
    let start =
        |call: &Call<Option<usize>>| if let Call::Start(bucket) = call { Some(*bucket) } else { None };
    let mut started: Vec<Option<usize>> = first.iter().filter_map(start).collect();
    let count = started.len();
    started.sort_unstable();
    started.dedup();
    let rank_count = set.rank_count();
    let divides = |groups: &Vec<usize>| {
        let mut taken = vec![false; rank_count];
        groups
            .iter()
            .flat_map(|&number| set.collectives[number].members.iter())
            .all(|&rank| taken.get_mut(rank).is_some_and(|taken| !std::mem::replace(taken, true)))
            && !taken.contains(&false)
    };
    let buckets = by_bucket(set);
    started.len() == count
        && count == buckets.len()
        && all.all(|other| other == first)
        && buckets.values().all(divides)
}

/// Whether the calls of one rank of each set of alike ranks show that the calls of all ranks fit. Every rank is in at most
/// one group of a bucket, and starts exactly the collectives of which it is a member; alike ranks meet the same sets of
/// ranks at the same calls, so what holds among those that stand for them holds among all.
fn alike_ranks_agree(set: &ProgramSet) -> bool {
    let ranks = set.rank_count();
    let mut named = set.programs.iter().map(|program| &program.ranks[..]);
    let mut members = set.collectives.iter().map(|collective| &collective.members[..]);
    if named.any(|own| own.iter().any(|&rank| rank >= ranks))
        || members.any(|own| own.iter().any(|&rank| rank >= ranks))
    {
        return false;
    }
    let class_of = alike(set);
    let count = class_of.iter().max().map_or(0, |most| most + 1);
    // The first rank of each class, and each class's collectives by bucket.
    let mut firsts: Vec<Option<usize>> = vec![None; count];
    class_of.iter().enumerate().for_each(|(rank, &class)| {
        firsts[class].get_or_insert(rank);
    });
    let mut own: Vec<IndexMap<usize, CollectiveId>> = vec![IndexMap::new(); count];
    let mut taken: Vec<usize> = vec![usize::MAX; class_of.len()];
    let mut bucket = None;
    let mut seen = 0;
    // Of each class, all ranks take part in a bucket or none.
    let mut sizes = vec![0; count];
    class_of.iter().for_each(|&class| sizes[class] += 1);
    let mut came: IndexMap<usize, usize> = IndexMap::new();
    let all_came = |came: &IndexMap<usize, usize>| came.iter().all(|(&class, &came)| came == sizes[class]);
    // The collectives as classes see them: the bucket and the classes that meet in it.
    let mut met: IndexMap<(usize, Vec<usize>), Collective> = IndexMap::new();
    let mut met_of: Vec<Option<CollectiveId>> = vec![None; set.collectives.len()];
    for (number, collective) in set.collectives.iter().enumerate() {
        // The groups of one bucket are adjacent.
        if bucket.replace(collective.bucket) != Some(collective.bucket) {
            seen += 1;
            if !all_came(&came) {
                return false;
            }
            came.clear();
        }
        for &rank in collective.members.iter() {
            match taken.get_mut(rank) {
                Some(last) if *last != seen => *last = seen,
                _ => return false,
            }
            let class = class_of[rank];
            *came.entry(class).or_default() += 1;
            if firsts[class] == Some(rank)
                && own[class].insert(collective.bucket, CollectiveId::new(number)).is_some()
            {
                return false;
            }
        }
        let mut classes: Vec<usize> = collective.members.iter().map(|&rank| class_of[rank]).collect();
        classes.sort_unstable();
        classes.dedup();
        if classes.iter().any(|&class| firsts[class].is_some_and(|rank| collective.members.contains(&rank))) {
            let entry = met.entry((collective.bucket, classes.clone()));
            let place = entry.index();
            entry.or_insert_with(|| Collective { members: classes.into(), ..collective.clone() });
            met_of[number] = Some(CollectiveId::new(place));
        }
    }
    if !all_came(&came) {
        return false;
    }
    let collectives: Vec<Collective> = met.into_values().collect();
    let programs = set.class_of_ranks();
    let mut calls: Vec<Calls> = Vec::with_capacity(count);
    for (class, rank) in firsts.iter().enumerate() {
        let Some(rank) = *rank else { return false };
        let program = &set.programs[programs[rank]];
        let name = |id: CollectiveId| -> Option<CollectiveId> {
            let bucket = set.collectives.get(id.index())?.bucket;
            met_of[own[class].get(&bucket)?.index()]
        };
        let named = Call::all(program).into_iter().map(|(at, call)| Some((at, call.named(name)?)));
        let Some(named) = named.collect::<Option<Vec<_>>>() else { return false };
        calls.push(Calls { rank: class, program, calls: named });
    }
    let classes = ProgramSet { programs: Vec::new(), collectives };
    check_membership(&classes, &calls).is_ok()
        && check_order(&classes, &calls).is_ok()
        && check_progress(&classes, &calls).is_ok()
}

/// The calls of each rank, in rank order.
fn calls_of_ranks(set: &ProgramSet) -> Vec<Calls<'_>> {
    let mut ranks: Vec<Calls> = Vec::new();
    for program in &set.programs {
        for &rank in &program.ranks {
            // The program of a single rank names its own collectives.
            let own = |id: CollectiveId| if program.ranks.len() > 1 { set.meeting(id, rank) } else { id };
            let call = |(index, call): (usize, Call)| Some((index, call.named(|id| Some(own(id)))?));
            let calls = Call::all(program).into_iter().filter_map(call).collect();
            ranks.push(Calls { rank, program, calls });
        }
    }
    ranks.sort_by_key(|calls| calls.rank);
    ranks
}

fn at(program: &Program, index: usize) -> String {
    at_rank(program, program.rank(), index)
}

fn at_rank(program: &Program, rank: usize, index: usize) -> String {
    if index >= program.instructions.len() {
        return format!("rank {rank}, behind its last instruction");
    }
    let origin = &program.instructions[index].origin;
    let path = if origin.path.is_empty() { "<root>" } else { &origin.path };
    format!("rank {rank}, instruction {index}: {} in {path}", origin.what)
}

fn started(program: &Program) -> impl Iterator<Item = (usize, &Start)> {
    program.instructions.iter().enumerate().filter_map(|(index, instruction)| match &instruction.action {
        Action::Start(start) => Some((index, start)),
        _ => None,
    })
}

/// Checks that all ranks pause equally often, in the order of their instructions, and that ports name these pauses.
fn check_pauses(set: &ProgramSet) -> Result<()> {
    let counts = || set.programs.iter().map(|program| program.pauses.len());
    let most = counts().max().unwrap_or(0);
    for program in &set.programs {
        let rank = program.rank();
        let Program { pauses, inputs, outputs, instructions, .. } = program;
        if pauses.len() < most {
            return Err(Diagnostic::new("E420", format!("rank {rank} does not pause where other ranks do"))
                .expected(format!("{most} pauses"))
                .found(pauses.len().to_string()));
        }
        let in_order = pauses.windows(2).all(|pair| pair[0] <= pair[1]);
        if !in_order || pauses.last().is_some_and(|&last| last > instructions.len()) {
            return Err(Diagnostic::new("E420", format!("rank {rank} has pauses out of order"))
                .expected(format!("ascending numbers up to {}", instructions.len()))
                .found(format!("{pauses:?}")));
        }
        let given = inputs.iter().map(|port| (port, 0..=most));
        let read = outputs.iter().map(|port| (port, 1..=most + 1));
        if let Some((port, moments)) = given.chain(read).find(|(port, moments)| !moments.contains(&port.at)) {
            return Err(Diagnostic::new("E420", format!("`{}` of rank {rank} names no pause", port.name))
                .expected(format!("a number from {} to {}", moments.start(), moments.end()))
                .found(port.at.to_string()));
        }
    }
    Ok(())
}

/// Checks that the shapes of a collective's tensors agree among members.
fn check_collective(collective: &Collective) -> Result<()> {
    let count = collective.members.len();
    for transfer in collective.transfers.iter() {
        let Transfer { exchange, inputs, outputs, what } = transfer;
        let wrong = |code, message: &str| {
            let list =
                |types: &[TensorType]| types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ");
            Err(Diagnostic::new(code, format!("{}: {message}", collective.label))
                .at(what.clone())
                .found(format!("{exchange:?}: {} -> {}", list(inputs), list(outputs))))
        };
        if inputs.len() != count || outputs.len() != count {
            return wrong("E403", &format!("a tensor does not have one type for each of {count} members"));
        }
        if exchange.kind() != collective.kind {
            return wrong("E403", "a tensor does not have the collective's kind");
        }
        let with = |ty: &TensorType, dim: usize, extent: usize| {
            let mut ty = ty.clone();
            ty.shape[dim] = extent;
            ty
        };
        let fits = match exchange {
            CollectiveOp::AllReduce { .. } => inputs.iter().chain(outputs.iter()).all(|ty| ty == &inputs[0]),
            CollectiveOp::AllGather { dim, extents } => {
                let full = with(&inputs[0], *dim, extents.iter().sum());
                extents.len() == count
                    && inputs.iter().zip(extents).all(|(ty, &extent)| *ty == with(&full, *dim, extent))
                    && outputs.iter().all(|ty| *ty == full)
            }
            CollectiveOp::ReduceScatter { dim, extents, .. } => {
                let full = with(&outputs[0], *dim, extents.iter().sum());
                extents.len() == count
                    && inputs.iter().all(|ty| *ty == full)
                    && outputs.iter().zip(extents).all(|(ty, &extent)| *ty == with(&full, *dim, extent))
            }
            CollectiveOp::AllToAll { split_dim, concat_dim, split_extents, concat_extents } => {
                let (split, concat) = (split_extents.iter().sum(), concat_extents.iter().sum());
                split_extents.len() == count
                    && concat_extents.len() == count
                    && inputs.iter().zip(outputs.iter()).enumerate().all(|(member, (input, output))| {
                        // The types of one member's input and output, with the other dimension at
                        // this member's extent.
                        let mut given = with(&inputs[0], *split_dim, split);
                        let mut got = given.clone();
                        if split_dim == concat_dim {
                            got.shape[*concat_dim] = split_extents[member] * count;
                            return output.dtype == input.dtype && *input == given;
                        }
                        given.shape[*concat_dim] = concat_extents[member];
                        got.shape[*split_dim] = split_extents[member];
                        got.shape[*concat_dim] = concat;
                        *input == given && *output == got
                    })
            }
            CollectiveOp::CollectivePermute { pairs } => {
                let mut targets: Vec<usize> = pairs.iter().map(|&(_, target)| target).collect();
                let mut sources: Vec<usize> = pairs.iter().map(|&(source, _)| source).collect();
                for ends in [&mut targets, &mut sources] {
                    ends.sort_unstable();
                    if ends.last().is_some_and(|&last| last >= count) || ends.windows(2).any(|w| w[0] == w[1])
                    {
                        return wrong("E409", "a pair names a rank outside the group, or one rank twice");
                    }
                }
                pairs.iter().all(|&(source, target)| inputs[source] == outputs[target])
            }
            CollectiveOp::CollectiveBroadcast { .. } => outputs.iter().all(|ty| *ty == inputs[0]),
            CollectiveOp::Send { boxes } => sends_fit(boxes, inputs, outputs),
        };
        if !fits {
            return wrong("E403", "the members' tensors have incompatible shapes");
        }
    }
    Ok(())
}

/// Checks that boxes are inside their inputs and fill the outputs, each element once.
fn sends_fit(boxes: &[BoxMove], inputs: &[TensorType], outputs: &[TensorType]) -> bool {
    let inside = |start: &[usize], extents: &[usize], ty: &TensorType| {
        start.len() == ty.rank()
            && extents.len() == ty.rank()
            && start.iter().zip(extents).zip(&ty.shape).all(|((start, extent), size)| start + extent <= *size)
    };
    let fits = |moved: &BoxMove| {
        let (Some(input), Some(output)) = (inputs.get(moved.source), outputs.get(moved.target)) else {
            return false;
        };
        input.dtype == output.dtype
            && inside(&moved.source_start, &moved.extents, input)
            && inside(&moved.target_start, &moved.extents, output)
    };
    let overlap = |a: &BoxMove, b: &BoxMove| {
        (0..a.extents.len()).all(|d| {
            a.target_start[d] < b.target_start[d] + b.extents[d]
                && b.target_start[d] < a.target_start[d] + a.extents[d]
        })
    };
    let mut arriving: Vec<Vec<&BoxMove>> = vec![Vec::new(); outputs.len()];
    for moved in boxes {
        match arriving.get_mut(moved.target) {
            Some(own) => own.push(moved),
            None => return false,
        }
    }
    let filled = |(member, output): (usize, &TensorType)| {
        let own = &arriving[member];
        let elements: usize = own.iter().map(|moved| moved.extents.iter().product::<usize>()).sum();
        let apart = own.iter().enumerate().all(|(n, a)| own[..n].iter().all(|b| !overlap(a, b)));
        elements == output.element_count() && apart
    };
    boxes.iter().all(fits) && outputs.iter().enumerate().all(filled)
}

/// Checks that every start of a rank has exactly one later wait, and every wait a start.
fn check_pairing(set: &ProgramSet, program: &Program) -> Result<()> {
    let mut open: IndexMap<CollectiveId, usize> = IndexMap::new();
    let mut seen = vec![false; set.collectives.len()];
    for (index, instruction) in program.instructions.iter().enumerate() {
        let label = |id: CollectiveId| set.collectives.get(id.index()).map_or("?", |c| &c.label);
        match &instruction.action {
            Action::Compute(_) | Action::Move(_) | Action::Moved(_) => {}
            Action::Start(Start { collective, .. }) => {
                let fresh =
                    seen.get_mut(collective.index()).is_some_and(|seen| !std::mem::replace(seen, true));
                if !fresh {
                    let message = format!("{} is started twice, or does not exist", label(*collective));
                    return Err(Diagnostic::new("E404", message).at(at(program, index)));
                }
                open.insert(*collective, index);
            }
            Action::Wait(collective) => {
                if open.swap_remove(collective).is_none() {
                    let message = format!("a wait for {}, which is not started", label(*collective));
                    return Err(Diagnostic::new("E404", message).at(at(program, index)));
                }
            }
        }
    }
    match open.first() {
        None => Ok(()),
        Some((id, &index)) => {
            let label = &set.collectives[id.index()].label;
            Err(Diagnostic::new("E404", format!("{label} is never waited for")).at(at(program, index)))
        }
    }
}

/// Checks that views stay inside their buffers, and that operands have the types that collectives
/// and regions expect.
fn check_types(set: &ProgramSet, program: &Program) -> Result<()> {
    for (index, instruction) in program.instructions.iter().enumerate() {
        let wrong = |expected: &TensorType, found: String| {
            Err(Diagnostic::new("E403", "an operand has the wrong type or shape")
                .at(at(program, index))
                .expected(expected.to_string())
                .found(found))
        };
        let view_fits = |view: &View, ty: &TensorType| -> Result<()> {
            let buffer = program.buffer(view.buffer);
            let seen = buffer.ty.with_shape(view.shape.clone());
            let inside = view.bounds().is_none_or(|(_, high)| high < buffer.ty.element_count());
            if &seen == ty && inside { Ok(()) } else { wrong(ty, format!("{seen} of {}", buffer.ty)) }
        };
        let buffer_fits = |id: BufferId, ty: &TensorType| -> Result<()> {
            let found = &program.buffer(id).ty;
            if found == ty { Ok(()) } else { wrong(ty, found.to_string()) }
        };
        let count_fits = |expected: usize, found: usize| -> Result<()> {
            if expected == found {
                return Ok(());
            }
            Err(Diagnostic::new("E403", "wrong number of operands")
                .at(at(program, index))
                .expected(expected.to_string())
                .found(found.to_string()))
        };
        match &instruction.action {
            Action::Wait(_) | Action::Moved(_) => {}
            Action::Move(moved) => {
                let host = program.buffer(moved.host);
                buffer_fits(moved.buffer, &host.ty)?;
                let [near, far] =
                    [moved.buffer, moved.host].map(|id| program.buffer(id).kind == BufferKind::Host);
                if near || !far {
                    return wrong(&host.ty, "a move that is not between the arena and host memory".into());
                }
            }
            Action::Compute(compute) => {
                let graph = &program.region(compute.region).graph;
                count_fits(graph.inputs.len(), compute.inputs.len())?;
                count_fits(graph.outputs.len(), compute.outputs.len())?;
                for (view, &value) in compute.inputs.iter().zip(&graph.inputs) {
                    view_fits(view, graph.ty(value))?;
                }
                for (&buffer, &value) in compute.outputs.iter().zip(&graph.outputs) {
                    buffer_fits(buffer, graph.ty(value))?;
                }
            }
            Action::Start(start) => {
                let collective = &set.collectives[start.collective.index()];
                let Some(member) = collective.member(program.rank()) else { continue };
                count_fits(collective.transfers.len(), start.inputs.len())?;
                count_fits(collective.transfers.len(), start.outputs.len())?;
                for (number, transfer) in collective.transfers.iter().enumerate() {
                    view_fits(&start.inputs[number], &transfer.inputs[member])?;
                    buffer_fits(start.outputs[number], &transfer.outputs[member])?;
                    if !start.inputs[number].is_dense() {
                        return wrong(&transfer.inputs[member], "elements that are not dense".into());
                    }
                }
            }
        }
    }
    Ok(())
}

/// Checks that all ranks of a class pass tensors of one type to the groups of a bucket.
fn check_class_types(set: &ProgramSet) -> Result<()> {
    let groups = by_bucket(set);
    let mut class_of_rank = vec![usize::MAX; set.rank_count()];
    for (class, program) in set.programs.iter().enumerate() {
        program.ranks.iter().for_each(|&rank| class_of_rank[rank] = class);
    }
    for (class, program) in set.programs.iter().enumerate().filter(|(_, program)| program.ranks.len() > 1) {
        for (index, start) in started(program) {
            let first = &set.collectives[start.collective.index()];
            let Some(own) = first.member(program.rank()) else { continue };
            let mut before: Option<&Collective> = None;
            for &number in &groups[&first.bucket] {
                let collective = &set.collectives[number];
                let is_alike = |other: &Collective| {
                    let classes = |of: &Collective| {
                        of.members.iter().map(|&r| class_of_rank.get(r)).collect::<Vec<_>>()
                    };
                    Arc::ptr_eq(&other.transfers, &collective.transfers)
                        && classes(other) == classes(collective)
                };
                if before.replace(collective).is_some_and(is_alike) {
                    continue;
                }
                let members = collective.members.iter().enumerate();
                for (member, &rank) in members.filter(|(_, rank)| class_of_rank.get(**rank) == Some(&class)) {
                    for (expected, found) in first.transfers.iter().zip(collective.transfers.iter()) {
                        let (input, output) = (&expected.inputs[own], &expected.outputs[own]);
                        if (&found.inputs[member], &found.outputs[member]) != (input, output) {
                            return Err(Diagnostic::new("E403", "ranks of one class have different tensors")
                                .at(at(program, index))
                                .expected(format!("{input} -> {output}"))
                                .found(format!(
                                    "{} -> {} on rank {rank}",
                                    found.inputs[member], found.outputs[member]
                                )));
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// Checks that the members of a collective, and no other ranks, start it.
fn check_membership(set: &ProgramSet, ranks: &[Calls]) -> Result<()> {
    let mut came: Vec<Vec<usize>> = vec![Vec::new(); set.collectives.len()];
    for Calls { rank, calls, .. } in ranks {
        for (_, call) in calls {
            if let Call::Start(id) = call {
                came[id.index()].push(*rank);
            }
        }
    }
    for (collective, came) in set.collectives.iter().zip(came) {
        let mut members = collective.members.to_vec();
        members.sort_unstable();
        if members != came {
            return Err(Diagnostic::new(
                "E402",
                format!("{}: the participating ranks are not its members", collective.label),
            )
            .expected(format!("ranks {members:?}"))
            .found(format!("ranks {came:?}")));
        }
    }
    Ok(())
}

/// Checks that ranks that share several collectives of the same members start them in one order.
/// Sends are matched by their edges: one stage may start to receive earlier or later than another
/// sends.
fn check_order(set: &ProgramSet, ranks: &[Calls]) -> Result<()> {
    let mut sequences: IndexMap<&[usize], Vec<CollectiveId>> = IndexMap::new();
    for Calls { rank, calls, .. } in ranks {
        let mut own: IndexMap<&[usize], Vec<CollectiveId>> = IndexMap::new();
        for (_, call) in calls {
            if let Call::Start(id) = call
                && set.collectives[id.index()].kind != CollectiveKind::Send
            {
                own.entry(&set.collectives[id.index()].members).or_default().push(*id);
            }
        }
        for (members, sequence) in own {
            let expected = sequences.entry(members).or_insert_with(|| sequence.clone());
            if let Some((a, b)) = expected.iter().zip(&sequence).find(|(a, b)| a != b) {
                let label =
                    |id: &CollectiveId| format!("#{} {}", id.index(), set.collectives[id.index()].label);
                let message =
                    format!("rank {rank} runs its collectives with ranks {members:?} in another order");
                return Err(Diagnostic::new("E401", message).expected(label(a)).found(label(b)));
            }
        }
    }
    Ok(())
}

/// Simulates the calls of all ranks: a wait returns once every member has started, a pause once every rank has come to it.
/// Until all ranks are done, at least one must be able to continue; otherwise they are deadlocked.
fn check_progress(set: &ProgramSet, ranks: &[Calls]) -> Result<()> {
    let mut arrived = vec![0usize; set.collectives.len()];
    let mut cursors = vec![0usize; ranks.len()];
    loop {
        let mut moved = false;
        let pauses =
            |(rank, &cursor): (&Calls, &usize)| matches!(rank.calls.get(cursor), Some((_, Call::Pause)));
        if !ranks.is_empty() && ranks.iter().zip(&cursors).all(pauses) {
            cursors.iter_mut().for_each(|cursor| *cursor += 1);
            moved = true;
        }
        for (rank, cursor) in ranks.iter().zip(&mut cursors) {
            while let Some((_, call)) = rank.calls.get(*cursor) {
                match call {
                    Call::Start(id) => arrived[id.index()] += 1,
                    Call::Wait(id) if arrived[id.index()] < set.collectives[id.index()].members.len() => {
                        break;
                    }
                    Call::Wait(_) => {}
                    Call::Pause => break,
                }
                *cursor += 1;
                moved = true;
            }
        }
        if moved {
            continue;
        }
        let mut error = Diagnostic::new("E405", "ranks wait for each other");
        let mut is_blocked = false;
        for (rank, &cursor) in ranks.iter().zip(&cursors) {
            if let Some(&(index, _)) = rank.calls.get(cursor) {
                is_blocked = true;
                let pauses = matches!(rank.calls[cursor], (_, Call::Pause));
                let verb = if pauses { "pauses before" } else { "waits at" };
                error = error.note(format!("{verb} {}", at_rank(rank.program, rank.rank, index)));
            }
        }
        return if is_blocked { Err(error) } else { Ok(()) };
    }
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Unwritten,
    Written,
    /// A collective or a move reads the buffer.
    Lent(Owner),
    /// A collective or a move writes the buffer.
    Owned(Owner),
}

/// What owns buffers from its start to its wait.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    Collective(CollectiveId),
    Move(Move),
}

/// The abstract execution of a program: whether each buffer is written, and what owns it.
struct Execution<'a> {
    set: &'a ProgramSet,
    program: &'a Program,
    /// The state of each buffer.
    state: Vec<State>,
    /// The buffers of the collectives and moves that are not waited for yet.
    lent: IndexMap<Owner, Vec<BufferId>>,
}

/// Checks that no buffer is read before it is written, used outside its span, or touched while a
/// collective or a move owns it, also not by the caller at a pause. Only moves access host memory.
fn check_accesses(set: &ProgramSet, program: &Program) -> Result<()> {
    let mut execution = Execution::begin(set, program);
    let mut pause = 0;
    for index in 0..=program.instructions.len() {
        while program.pauses.get(pause).is_some_and(|&at| at == index) {
            pause += 1;
            at_pause(program, pause, &mut execution.state)?;
        }
        let Some(instruction) = program.instructions.get(index) else { break };
        match &instruction.action {
            Action::Wait(collective) => execution.end(Owner::Collective(*collective), index)?,
            Action::Moved(moved) => execution.end(Owner::Move(*moved), index)?,
            action @ (Action::Compute(_) | Action::Start(_) | Action::Move(_)) => {
                execution.access(action, index)?;
            }
        }
    }
    execution.check_moves_ended()?;
    execution.check_outputs()
}

impl<'a> Execution<'a> {
    /// Before the first instruction: inputs and constants are written.
    fn begin(set: &'a ProgramSet, program: &'a Program) -> Execution<'a> {
        let mut state = vec![State::Unwritten; program.buffers.len()];
        let constants = program.constants.iter().map(|c| c.0);
        let constants = constants.chain(program.rank_constants.iter().map(|c| c.0));
        let given = program.inputs.iter().filter(|port| port.at == 0).map(|port| port.buffer);
        let loaded = given.chain(constants);
        loaded.for_each(|id| state[id.index()] = State::Written);
        Execution { set, program, state, lent: IndexMap::new() }
    }

    fn name(&self, id: BufferId) -> String {
        format!("%{} ({})", id.index(), self.program.buffer(id).what)
    }

    fn check_span(&self, id: BufferId, index: usize) -> Result<()> {
        let buffer = self.program.buffer(id);
        if (buffer.first..=buffer.last).contains(&index) {
            return Ok(());
        }
        Err(Diagnostic::new("E407", format!("buffer {} is used while it has no memory", self.name(id)))
            .at(at(self.program, index))
            .expected(format!("instructions {} to {}", buffer.first, buffer.last)))
    }

    /// The error of an access to a buffer that something else owns.
    fn busy(&self, id: BufferId, owner: Owner, index: usize) -> Result<()> {
        let label = match owner {
            Owner::Collective(id) => self.set.collectives[id.index()].label.clone(),
            Owner::Move(moved) => format!("the {} of {}", moved.kind.name(), self.name(moved.buffer)),
        };
        let message = format!("buffer {} is used while it belongs to {label}", self.name(id));
        Err(Diagnostic::new("E407", message).at(at(self.program, index)).help("use it after the wait"))
    }

    /// An instruction that reads and writes buffers, and owns them until its wait if it has one.
    fn access(&mut self, action: &Action, index: usize) -> Result<()> {
        let (inputs, outputs) = action.accesses();
        let (by, workspace) = match action {
            Action::Compute(compute) => (None, compute.workspace),
            Action::Start(start) => (Some(Owner::Collective(start.collective)), None),
            Action::Move(moved) => (Some(Owner::Move(*moved)), None),
            Action::Wait(_) | Action::Moved(_) => (None, None),
        };
        let is_move = matches!(action, Action::Move(_));
        for &id in inputs.iter().chain(&outputs).filter(|_| !is_move) {
            if self.program.buffer(id).kind == BufferKind::Host {
                let name = self.name(id);
                let message = format!("buffer {name} is used where it has no memory: in host memory");
                let error = Diagnostic::new("E407", message);
                return Err(error.at(at(self.program, index)).help("load it first"));
            }
        }
        for &id in &inputs {
            self.read(id, index, by)?;
        }
        for &id in outputs.iter().chain(&workspace) {
            self.write(id, index, by)?;
        }
        if let Some(by) = by {
            self.lent.insert(by, inputs.iter().chain(&outputs).copied().collect());
        }
        Ok(())
    }

    fn read(&mut self, id: BufferId, index: usize, by: Option<Owner>) -> Result<()> {
        self.check_span(id, index)?;
        match self.state[id.index()] {
            // The empty input of a stage that only receives.
            State::Unwritten if self.program.buffer(id).bytes == 0 => {}
            State::Unwritten => {
                let message = format!("buffer {} is read before it is written", self.name(id));
                return Err(Diagnostic::new("E406", message).at(at(self.program, index)));
            }
            State::Owned(owner) => return self.busy(id, owner, index),
            State::Lent(_) => {}
            State::Written => self.state[id.index()] = by.map_or(State::Written, State::Lent),
        }
        Ok(())
    }

    fn write(&mut self, id: BufferId, index: usize, by: Option<Owner>) -> Result<()> {
        self.check_span(id, index)?;
        if let State::Lent(owner) | State::Owned(owner) = self.state[id.index()] {
            return self.busy(id, owner, index);
        }
        self.state[id.index()] = by.map_or(State::Written, State::Owned);
        Ok(())
    }

    /// The wait for a collective or a move, which gives its buffers back.
    fn end(&mut self, owner: Owner, index: usize) -> Result<()> {
        let Some(ids) = self.lent.swap_remove(&owner) else {
            let error = Diagnostic::new("E404", "a wait for what is not started");
            return Err(error.at(at(self.program, index)));
        };
        for id in ids {
            self.check_span(id, index)?;
            // A buffer that several collectives read is lent until the last of them ends.
            let other = self.lent.iter().find(|(_, ids)| ids.contains(&id)).map(|(&other, _)| other);
            self.state[id.index()] = other.map_or(State::Written, State::Lent);
        }
        Ok(())
    }

    fn check_moves_ended(&self) -> Result<()> {
        let Some((Owner::Move(moved), _)) = self.lent.first() else { return Ok(()) };
        let (kind, name) = (moved.kind.name(), self.name(moved.buffer));
        let message = format!("the {kind} of {name} is never waited for");
        Err(Diagnostic::new("E404", message).at(format!("rank {}", self.program.rank())))
    }

    /// Checks that outputs are written, and keep their memory until the step ends.
    fn check_outputs(&self) -> Result<()> {
        let program = self.program;
        let end = program.instructions.len().saturating_sub(1);
        for port in &program.outputs {
            if self.state[port.buffer.index()] != State::Written {
                return Err(Diagnostic::new("E406", format!("output `{}` is never written", port.name))
                    .at(format!("rank {}", program.rank())));
            }
            // The caller may read it until the next step begins.
            let Buffer { first, last, bytes, .. } = program.buffer(port.buffer);
            if *last < end && *bytes > 0 {
                let message = format!("output `{}` loses its memory before the step ends", port.name);
                return Err(Diagnostic::new("E407", message)
                    .at(format!("rank {}", program.rank()))
                    .expected(format!("memory of its own up to instruction {end}"))
                    .found(format!("instructions {first} to {last}")));
            }
        }
        Ok(())
    }
}

/// The caller acts at a pause: what he reads is complete and stays so, and what he writes has memory and is in no use.
fn at_pause(program: &Program, pause: usize, state: &mut [State]) -> Result<()> {
    let at = program.before(pause);
    let place = || format!("rank {}, pause {pause}", program.rank());
    let has_memory = |buffer: BufferId| {
        let Buffer { first, last, .. } = program.buffer(buffer);
        *last >= at.min(program.instructions.len().saturating_sub(1)) && *first <= at
    };
    let mut is_written_behind = vec![false; program.buffers.len()];
    for instruction in &program.instructions[at..] {
        instruction.action.accesses().1.iter().for_each(|id| is_written_behind[id.index()] = true);
    }
    for port in program.outputs.iter().filter(|port| port.at == pause) {
        if !matches!(state[port.buffer.index()], State::Written | State::Lent(_)) {
            let message = format!("output `{}` is read before it is written", port.name);
            return Err(Diagnostic::new("E406", message).at(place()));
        }
        if !has_memory(port.buffer) || is_written_behind[port.buffer.index()] {
            let message = format!("output `{}` is read where another value takes its memory", port.name);
            return Err(Diagnostic::new("E407", message).at(place()));
        }
    }
    for port in program.inputs.iter().filter(|port| port.at == pause) {
        if !has_memory(port.buffer) || state[port.buffer.index()] != State::Unwritten {
            let message = format!("input `{}` is written while it has no memory of its own", port.name);
            return Err(Diagnostic::new("E407", message).at(place()));
        }
        state[port.buffer.index()] = State::Written;
    }
    Ok(())
}

/// Checks that buffers are inside the arena, aligned, and disjoint while both are live.
fn check_map(program: &Program) -> Result<()> {
    let end = program.instructions.len().saturating_sub(1);
    let is_host = |index: usize| program.buffers[index].kind == BufferKind::Host;
    let describe = |index: usize| {
        let buffer = &program.buffers[index];
        let (from, to) = (buffer.offset_bytes, buffer.offset_bytes + buffer.bytes);
        format!("%{index} ({}) at {from}..{to}, live {}..={}", buffer.what, buffer.first, buffer.last)
    };
    let mut by_offset: Vec<usize> =
        (0..program.buffers.len()).filter(|&index| program.buffers[index].bytes > 0).collect();
    by_offset.sort_by_key(|&index| (is_host(index), program.buffers[index].offset_bytes, index));
    for &index in &by_offset {
        let buffer = &program.buffers[index];
        let size = if is_host(index) { program.host_bytes } else { program.arena_bytes };
        let fits = buffer.offset_bytes.is_multiple_of(ALIGNMENT_BYTES)
            && buffer.bytes == buffer.ty.bytes()
            && buffer.offset_bytes + buffer.bytes <= size
            && (buffer.kind != BufferKind::Persistent || (buffer.first, buffer.last) == (0, end));
        if !fits {
            return Err(Diagnostic::new(
                "E408",
                format!("rank {}: a buffer is misaligned or outside the arena", program.rank()),
            )
            .expected(format!("a multiple of {ALIGNMENT_BYTES} in a memory of {size} bytes"))
            .found(describe(index)));
        }
    }
    for (number, &a) in by_offset.iter().enumerate() {
        let first = &program.buffers[a];
        for &b in &by_offset[number + 1..] {
            let second = &program.buffers[b];
            if is_host(a) != is_host(b) || second.offset_bytes >= first.offset_bytes + first.bytes {
                break;
            }
            if first.last < second.first || second.last < first.first || in_place(program, a, b) {
                continue;
            }
            return Err(Diagnostic::new(
                "E408",
                format!("rank {}: two live buffers overlap", program.rank()),
            )
            .note(describe(a))
            .note(describe(b)));
        }
    }
    Ok(())
}

/// Whether one buffer's span ends at the instruction where the other's begins, and that instruction
/// may write the second over the first.
fn in_place(program: &Program, a: usize, b: usize) -> bool {
    let (a, b) = if program.buffers[a].first <= program.buffers[b].first { (a, b) } else { (b, a) };
    let (old, new) = (&program.buffers[a], &program.buffers[b]);
    let (a, b) = (BufferId::new(a), BufferId::new(b));
    let Some(instruction) = program.instructions.get(old.last) else { return false };
    let writes = matches!(&instruction.action, Action::Compute(compute) if compute.outputs.contains(&b));
    old.last == new.first
        && old.offset_bytes == new.offset_bytes
        && writes
        && may_overwrite(program, instruction, a, b)
}
