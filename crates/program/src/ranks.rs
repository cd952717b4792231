//! Ranks and classes: which ranks run which local graph, and the program of one rank of a class.
//!
//! Lowering works on one graph per class. The program is the same for every rank of the class
//! except for three things that depend on the rank's number: scalars folded from tables over ranks,
//! offsets of slices, and the group in which the rank takes part in a collective.
//! [`ProgramSet::program`] fills them in.

use crate::program::{Action, Program, ProgramSet, Region, View};
use partita_base::{CollectiveId, Diagnostic, Result};
use partita_ir::ClassGraph;

/// Which ranks belong to each class.
pub(crate) struct Classes {
    /// The ranks of each class, ascending.
    pub ranks: Vec<Vec<usize>>,
    /// The class of each rank.
    pub of_rank: Vec<usize>,
}

impl Classes {
    /// E400 if a rank is in no class or in two.
    pub fn of(classes: &[ClassGraph]) -> Result<Classes> {
        let ranks: Vec<Vec<usize>> = classes.iter().map(|class| class.ranks.clone()).collect();
        let mut of_rank = vec![usize::MAX; ranks.iter().map(Vec::len).sum()];
        for (class, members) in ranks.iter().enumerate() {
            for &rank in members {
                match of_rank.get_mut(rank) {
                    Some(slot) if *slot == usize::MAX => *slot = class,
                    _ => {
                        return Err(Diagnostic::new("E400", "the rank classes do not cover every rank once")
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

    /// The position in `programs` of each rank's class.
    pub fn class_of_ranks(&self) -> Vec<usize> {
        let mut class_of = vec![0; self.rank_count()];
        for (class, program) in self.programs.iter().enumerate() {
            program.ranks.iter().for_each(|&rank| class_of[rank] = class);
        }
        class_of
    }

    /// The program of the class of a rank. Its instructions, buffers and sizes also hold for the
    /// rank.
    pub fn class_of(&self, rank: usize) -> Option<&Program> {
        self.programs.iter().find(|program| program.ranks.binary_search(&rank).is_ok())
    }

    /// The program of one rank, with the values that depend on its number; `None` if there is no
    /// such rank.
    pub fn program(&self, rank: usize) -> Option<Program> {
        let class = self.class_of(rank)?;
        let mut program = class.clone();
        if class.ranks.len() > 1 {
            for instruction in &mut program.instructions {
                match &mut instruction.action {
                    Action::Compute(_) | Action::Move(_) | Action::Moved(_) => {}
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
                Action::Wait(_) | Action::Move(_) | Action::Moved(_) => continue,
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

    /// This set with a separate program for each rank: `programs[r]` is that of rank `r`. An
    /// executor starts from this form.
    pub fn each_rank(&self) -> ProgramSet {
        ProgramSet {
            programs: (0..self.rank_count()).filter_map(|rank| self.program(rank)).collect(),
            collectives: self.collectives.clone(),
        }
    }

    /// Maps a collective of the first rank of a class to that of another rank of the class: the
    /// collective of the rank's own group.
    pub(crate) fn meeting(&self, first: CollectiveId, rank: usize) -> CollectiveId {
        let bucket = self.collectives[first.index()].bucket;
        let takes_part = |number: &usize| {
            let collective = &self.collectives[*number];
            collective.bucket == bucket && collective.members.contains(&rank)
        };
        // The groups of one bucket are adjacent.
        let is_near = |number: &usize| self.collectives[*number].bucket == bucket;
        let before = (0..first.index()).rev().take_while(is_near).find(takes_part);
        let after = || (first.index()..self.collectives.len()).take_while(is_near).find(takes_part);
        before.or_else(after).map_or(first, CollectiveId::new)
    }
}

impl Region {
    /// Whether the region differs between the ranks of a class.
    pub(crate) fn is_by_rank(&self) -> bool {
        self.graph.nodes.iter().any(|node| node.op.is_by_rank())
    }

    /// Specialises the region for one rank.
    pub(crate) fn bind(&mut self, rank: usize) {
        if self.is_by_rank() {
            self.graph.nodes.iter_mut().for_each(|node| node.op = node.op.on_rank(rank));
        }
    }
}

impl View {
    /// Specialises the view for the rank at a position of its class.
    fn bind(&mut self, position: usize) {
        if let Some(offsets) = self.offsets_by_rank.take() {
            self.offset_elements = offsets[position];
        }
    }
}
