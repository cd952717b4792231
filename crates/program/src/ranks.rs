//! Ranks and classes: which ranks run which local graph, and the program of one rank of a class.
//!
//! Lowering works on one graph per class. Its program is that of every rank of the class but for three things that
//! follow from the rank's number: scalars folded from tables over ranks, the places of slices, and the group in which
//! the rank takes part in a collective. [`ProgramSet::program`] fills them in.

use crate::program::{Action, Program, ProgramSet, Region, View};
use partita_base::{CollectiveId, Diagnostic, Result};
use partita_ir::ClassGraph;

/// The ranks of each class.
pub(crate) struct Classes {
    /// Ascending, by class.
    pub ranks: Vec<Vec<usize>>,
    /// The class of each rank.
    pub of_rank: Vec<usize>,
}

impl Classes {
    /// E400 where a rank is in no class or in two.
    pub fn of(classes: &[ClassGraph]) -> Result<Classes> {
        let ranks: Vec<Vec<usize>> = classes.iter().map(|class| class.ranks.clone()).collect();
        let mut of_rank = vec![usize::MAX; ranks.iter().map(Vec::len).sum()];
        for (class, members) in ranks.iter().enumerate() {
            for &rank in members {
                match of_rank.get_mut(rank) {
                    Some(slot) if *slot == usize::MAX => *slot = class,
                    _ => {
                        return Err(Diagnostic::new("E400", "the classes do not divide the ranks")
                            .expected(format!("each rank below {} in one class", of_rank.len()))
                            .found(format!("{ranks:?}")));
                    }
                }
            }
        }
        if of_rank.is_empty() || ranks.iter().any(Vec::is_empty) {
            return Err(Diagnostic::new("E400", "there is no rank to lower a program for"));
        }
        Ok(Classes { ranks, of_rank })
    }

    pub fn rank_count(&self) -> usize {
        self.of_rank.len()
    }
}

impl ProgramSet {
    /// The number of ranks.
    pub fn rank_count(&self) -> usize {
        self.programs.iter().map(|program| program.ranks.len()).sum()
    }

    /// The program of the class that a rank belongs to: its instructions, buffers and sizes are the rank's own.
    pub fn class_of(&self, rank: usize) -> Option<&Program> {
        self.programs.iter().find(|program| program.ranks.binary_search(&rank).is_ok())
    }

    /// The program of one rank, with what follows from its number filled in; `None` where there is no such rank.
    pub fn program(&self, rank: usize) -> Option<Program> {
        let class = self.class_of(rank)?;
        let mut program = class.clone();
        if class.ranks.len() > 1 {
            for instruction in &mut program.instructions {
                match &mut instruction.action {
                    Action::Compute(_) => {}
                    Action::Start(start) => start.collective = self.meeting(start.collective, rank),
                    Action::Wait(collective) => *collective = self.meeting(*collective, rank),
                }
            }
        }
        let position = class.ranks.binary_search(&rank).ok()?;
        for instruction in &mut program.instructions {
            let views: &mut [View] = match &mut instruction.action {
                Action::Compute(compute) => &mut compute.inputs,
                Action::Start(start) => &mut start.inputs,
                Action::Wait(_) => continue,
            };
            views.iter_mut().for_each(|view| view.bind(position));
        }
        program.regions.iter_mut().for_each(|region| region.bind(rank));
        let own = program
            .rank_constants
            .drain(..)
            .filter_map(|(buffer, constant)| Some((buffer, constant.on_rank(rank)?.value)));
        program.constants.extend(own);
        program.ranks = vec![rank];
        Some(program)
    }

    /// This set with a program of its own for each rank: `programs[r]` is rank `r`'s. What runs the ranks starts from it.
    pub fn each_rank(&self) -> ProgramSet {
        ProgramSet {
            programs: (0..self.rank_count()).filter_map(|rank| self.program(rank)).collect(),
            collectives: self.collectives.clone(),
        }
    }

    /// The collective in which a rank takes part where the first rank of its class takes part in `first`: that of the
    /// rank's own group.
    pub(crate) fn meeting(&self, first: CollectiveId, rank: usize) -> CollectiveId {
        let bucket = self.collectives[first.index()].bucket;
        let takes_part = |number: &usize| {
            let collective = &self.collectives[*number];
            collective.bucket == bucket && collective.members.contains(&rank)
        };
        // The groups of a bucket stand side by side.
        let is_near = |number: &usize| self.collectives[*number].bucket == bucket;
        let before = (0..first.index()).rev().take_while(is_near).find(takes_part);
        let after = || (first.index()..self.collectives.len()).take_while(is_near).find(takes_part);
        before.or_else(after).map_or(first, CollectiveId::new)
    }
}

impl Region {
    /// Whether the region of one rank of a class differs from that of another.
    pub(crate) fn is_by_rank(&self) -> bool {
        self.graph.nodes.iter().any(|node| node.op.is_by_rank())
    }

    /// Makes this the region of one rank.
    pub(crate) fn bind(&mut self, rank: usize) {
        if self.is_by_rank() {
            self.graph.nodes.iter_mut().for_each(|node| node.op = node.op.on_rank(rank));
        }
    }
}

impl View {
    /// Makes this the view of the rank at a position of its class.
    fn bind(&mut self, position: usize) {
        if let Some(offsets) = self.offsets_by_rank.take() {
            self.offset_elements = offsets[position];
        }
    }
}
