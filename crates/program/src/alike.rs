//! Which ranks are alike: those of one class whose collectives have members of the same classes, on devices of one kind.
//!
//! The ranks of a program's class may share collectives with ranks of different classes: on a mesh with two axes that both
//! split a dimension unevenly, the group of one rank has another rank with the largest shard, that of the next has none.
//! Classes are split until all ranks of one agree, as in the refinement of colours of a graph.

use crate::program::ProgramSet;
use indexmap::IndexMap;
use std::collections::BTreeMap;

/// The class of each rank; classes are numbered in the order of their programs, then of their first ranks.
pub fn alike(set: &ProgramSet) -> Vec<usize> {
    alike_on(set, &[])
}

/// As [`alike`], where ranks with different numbers in `kinds` differ too; those behind its end have the number 0.
pub fn alike_on(set: &ProgramSet, kinds: &[usize]) -> Vec<usize> {
    let program_of = set.class_of_ranks();
    let mut class_of = program_of.clone();
    let mut count = set.programs.len();
    if kinds.iter().any(|&kind| kind > 0) {
        let most = 1 + kinds.iter().max().copied().unwrap_or(0);
        let kind = |rank: usize| kinds.get(rank).copied().unwrap_or(0);
        let split: Vec<usize> =
            program_of.iter().enumerate().map(|(rank, program)| program * most + kind(rank)).collect();
        class_of = numbered(&program_of, &split);
        count = class_of.iter().max().map_or(0, |last| last + 1);
    }
    // Collectives that share a list of members say the same about their ranks.
    let mut groups: IndexMap<*const usize, (usize, &[usize])> = IndexMap::new();
    for collective in &set.collectives {
        groups.entry(collective.members.as_ptr()).or_insert((collective.bucket, &collective.members));
    }
    // The ranks of a single class are alike.
    while count > 1 {
        let mut next = class_of.clone();
        let mut lists: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
        let mut known: BTreeMap<(usize, usize, usize, usize), usize> = BTreeMap::new();
        let mut fresh = count;
        for &(bucket, members) in groups.values() {
            let mut met: Vec<usize> = members.iter().map(|&rank| class_of[rank]).collect();
            met.sort_unstable();
            met.dedup();
            let list = lists.len();
            let list = *lists.entry(met).or_insert(list);
            for &rank in members {
                next[rank] = *known.entry((next[rank], bucket, members.len(), list)).or_insert_with(|| {
                    fresh += 1;
                    fresh - 1
                });
            }
        }
        let numbers = numbered(&program_of, &next);
        let split = numbers.iter().max().map_or(0, |most| most + 1);
        class_of = numbers;
        if split == count {
            break;
        }
        count = split;
    }
    class_of
}

/// The classes with numbers from 0, by program and first rank.
fn numbered(program_of: &[usize], class_of: &[usize]) -> Vec<usize> {
    let mut first: BTreeMap<usize, usize> = BTreeMap::new();
    for (rank, &class) in class_of.iter().enumerate() {
        first.entry(class).or_insert(rank);
    }
    let mut order: Vec<(usize, usize, usize)> =
        first.into_iter().map(|(class, rank)| (program_of[rank], rank, class)).collect();
    order.sort_unstable();
    let number: BTreeMap<usize, usize> =
        order.into_iter().enumerate().map(|(number, (.., class))| (class, number)).collect();
    class_of.iter().map(|class| number[class]).collect()
}
