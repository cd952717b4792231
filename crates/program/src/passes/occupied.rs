//! Memory in use during a span of instructions, for memory planning: a segment tree of occupied
//! addresses and a sparse table of live bytes over the instructions. A query does not visit every
//! buffer that is live in the span.

use super::memory::Storage;

/// Disjoint occupied ranges of addresses, ascending. Adjacent ranges are merged; a range without
/// bytes is kept if it is inside a gap.
#[derive(Clone, Default)]
struct Ranges(Vec<(usize, usize)>);

impl Ranges {
    fn add(&mut self, (mut from, mut to): (usize, usize)) {
        let first = self.0.partition_point(|&(_, end)| end < from);
        let count = self.0[first..].partition_point(|&(start, _)| start <= to);
        let last = first + count;
        if count > 0 {
            from = from.min(self.0[first].0);
            to = to.max(self.0[last - 1].1);
        }
        self.0.splice(first..last, [(from, to)]);
    }
}

/// A segment tree over instructions that answers which addresses are occupied.
pub(super) struct Occupied {
    /// The number of instructions, rounded up to a power of two. Node `1` covers all instructions;
    /// the halves of node `n` are `2n` and `2n + 1`.
    width: usize,
    /// Occupied during all of a node's instructions, but not all of its parent's.
    throughout: Vec<Ranges>,
    /// Occupied during any of a node's instructions.
    ever: Vec<Ranges>,
}

impl Occupied {
    pub fn new(instructions: usize) -> Occupied {
        let width = instructions.max(1).next_power_of_two();
        Occupied {
            width,
            throughout: vec![Ranges::default(); 2 * width],
            ever: vec![Ranges::default(); 2 * width],
        }
    }

    /// Marks a range of addresses as occupied from instruction `first` to `last`.
    pub fn add(&mut self, first: usize, last: usize, range: (usize, usize)) {
        let mut open = vec![(1, 0, self.width)];
        while let Some((node, from, count)) = open.pop() {
            self.ever[node].add(range);
            if first <= from && from + count - 1 <= last {
                self.throughout[node].add(range);
            } else {
                open.extend(halves(node, from, count).into_iter().filter(|half| meets(half, first, last)));
            }
        }
    }

    /// Address ranges occupied at any time from instruction `first` to `last`, by address.
    pub fn during(&self, first: usize, last: usize) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        let mut open = vec![(1, 0, self.width)];
        while let Some((node, from, count)) = open.pop() {
            if first <= from && from + count - 1 <= last {
                found.extend_from_slice(&self.ever[node].0);
            } else {
                found.extend_from_slice(&self.throughout[node].0);
                open.extend(halves(node, from, count).into_iter().filter(|half| meets(half, first, last)));
            }
        }
        // The runs are sorted, so this is a merge.
        found.sort();
        found
    }
}

/// (node, its first instruction, number of instructions).
type Part = (usize, usize, usize);

fn halves(node: usize, from: usize, count: usize) -> [Part; 2] {
    let half = count / 2;
    [(2 * node, from, half), (2 * node + 1, from + half, half)]
}

fn meets(&(_, from, count): &Part, first: usize, last: usize) -> bool {
    from <= last && first < from + count
}

/// A sparse table of the bytes live at each instruction; it answers maxima over spans.
pub(super) struct LiveRanges {
    /// `most[k][i]` is the maximum over the `2^k` instructions from `i` on.
    most: Vec<Vec<usize>>,
}

impl LiveRanges {
    pub fn of<'a>(storages: impl Iterator<Item = &'a Storage>, instructions: usize) -> LiveRanges {
        let (mut begins, mut ends) = (vec![0; instructions], vec![0; instructions + 1]);
        for storage in storages.filter(|storage| storage.first < instructions) {
            begins[storage.first] += storage.bytes;
            ends[(storage.last + 1).min(instructions)] += storage.bytes;
        }
        let mut live = 0;
        let at = begins.iter().zip(&ends).map(|(begin, end)| {
            live = live + begin - end;
            live
        });
        let mut most = vec![at.collect::<Vec<usize>>()];
        let mut width = 1;
        while 2 * width <= instructions {
            let half = &most[most.len() - 1];
            let pairs = half.iter().zip(&half[width..]);
            most.push(pairs.map(|(&one, &other)| one.max(other)).collect());
            width *= 2;
        }
        LiveRanges { most }
    }

    /// The most bytes live at one instruction of the storage's span.
    pub fn most_live(&self, storage: &Storage) -> usize {
        let count = self.most[0].len();
        let (first, end) = (storage.first, (storage.last + 1).min(count));
        if first >= end {
            return 0;
        }
        let level = (end - first).ilog2() as usize;
        self.most[level][first].max(self.most[level][end - (1 << level)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storages() -> Vec<(Storage, usize)> {
        let mut state = 7u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        (0..300)
            .map(|_| {
                let (a, b) = (next(50), next(50));
                (Storage { first: a.min(b), last: a.max(b), bytes: next(4) * 64 }, next(40) * 64)
            })
            .collect()
    }

    /// The gaps of at least one byte between ranges that are sorted by their begin.
    fn gaps(ranges: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let mut free_from = 0;
        let mut gaps = Vec::new();
        for &(from, to) in ranges {
            if from > free_from {
                gaps.push((free_from, from));
            }
            free_from = free_from.max(to);
        }
        gaps.push((free_from, usize::MAX));
        gaps
    }

    #[test]
    fn gaps_are_those_between_all_that_live_in_a_span() {
        let storages = storages();
        let mut occupied = Occupied::new(50);
        for (number, (storage, offset)) in storages.iter().enumerate() {
            let before = storages[..number].iter();
            let mut alive: Vec<(usize, usize)> = before
                .filter(|(other, _)| other.last >= storage.first && other.first <= storage.last)
                .map(|(other, offset)| (*offset, offset + other.bytes))
                .collect();
            alive.sort_unstable();
            assert_eq!(gaps(&occupied.during(storage.first, storage.last)), gaps(&alive), "storage {number}");
            occupied.add(storage.first, storage.last, (*offset, offset + storage.bytes));
        }
    }

    #[test]
    fn the_most_that_lives_in_a_span_is_that_of_its_fullest_instruction() {
        let storages = storages();
        let crowd = LiveRanges::of(storages.iter().map(|(storage, _)| storage), 50);
        let live = |at: usize| {
            let alive = storages.iter().filter(|(s, _)| s.first <= at && at <= s.last);
            alive.map(|(s, _)| s.bytes).sum::<usize>()
        };
        for (storage, _) in &storages {
            let most = (storage.first..=storage.last).map(live).max();
            assert_eq!(Some(crowd.most_live(storage)), most);
        }
    }
}
