//! Which forward values to keep for the backward pass within a number of bytes, and which to compute again.
//!
//! A value that the backward pass reads is either kept or computed again; what is computed again needs its operands, which
//! are kept or computed again themselves. Every value is computed again at most once. The cost of a choice is that of all
//! ops it runs twice.
//!
//! For a price λ of a byte, the choice of the least cost + λ bytes is a minimum cut: value v has two nodes, *needed* and
//! *repeated*. Being needed without being repeated cuts needed(v) → repeated(v) of capacity λ bytes(v); being repeated cuts
//! repeated(v) → sink of capacity cost(v); what is repeated needs its operands by edges that cannot be cut. Prices are
//! bisected, which walks along the convex hull of all choices; what a budget leaves beyond a point of the hull is filled
//! value by value. The dual of the cut bounds the least cost from below, so the gap of a choice is known.
//!
//! The knapsack of PyTorch's activation memory budget chooses among the values that the backward pass reads by their own
//! cost alone. It does not know that repeating one may need another, or that a small value far up the graph can stand for
//! many.

/// A forward op of the problem, in execution order.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Item {
    /// Bytes to keep its results.
    pub bytes: f64,
    /// The cost to compute it again; infinite if that is not possible.
    pub cost: f64,
    /// Earlier ops whose results it reads. What is there anyway, such as parameters, is left out.
    pub operands: Vec<usize>,
    /// Whether the backward pass reads its results.
    pub is_read: bool,
    /// Whether it is there anyway, without a choice.
    pub is_free: bool,
}

/// A choice and what it comes to.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Choice {
    /// For each item, whether it is kept if it is needed.
    pub kept: Vec<bool>,
    /// For each item, whether it is needed and kept.
    pub held: Vec<bool>,
    /// For each item, whether it is computed again.
    pub repeated: Vec<bool>,
    /// Bytes of all that is kept and needed.
    pub bytes: f64,
    /// The cost of all that is computed again; infinite if something cannot be.
    pub cost: f64,
}

/// What keeping these items comes to.
pub(crate) fn evaluate(items: &[Item], kept: &[bool]) -> Choice {
    let mut needed: Vec<bool> = items.iter().map(|item| item.is_read).collect();
    let none = vec![false; items.len()];
    let mut choice =
        Choice { kept: kept.to_vec(), held: none.clone(), repeated: none, bytes: 0.0, cost: 0.0 };
    for (index, item) in items.iter().enumerate().rev() {
        if !needed[index] || item.is_free {
            continue;
        }
        if kept[index] {
            choice.held[index] = true;
            choice.bytes += item.bytes;
        } else {
            choice.repeated[index] = true;
            choice.cost += item.cost;
            item.operands.iter().for_each(|&operand| needed[operand] = true);
        }
    }
    choice
}

/// The most prices of a byte that are tried.
const PRICES: usize = 48;

/// The cheapest choice found within a budget, and a lower bound of the cost of any. `None` if even the smallest choice is
/// larger.
pub(crate) fn within(items: &[Item], budget: f64) -> Option<(Choice, f64)> {
    // What has no bytes of its own cannot be kept.
    let all = evaluate(items, &items.iter().map(|item| item.bytes.is_finite()).collect::<Vec<_>>());
    if all.bytes <= budget {
        return Some((all, 0.0));
    }
    // A price at which every byte costs more than all ops together, and the search between it and none.
    let total: f64 = items.iter().map(|item| item.cost).filter(|cost| cost.is_finite()).sum();
    let least =
        items.iter().map(|item| item.bytes).filter(|bytes| *bytes > 0.0).fold(f64::INFINITY, f64::min);
    let mut bound: f64 = 0.0;
    let mut at = |price: f64| {
        let choice = cheapest_at(items, price);
        bound = bound.max(choice.cost + price * (choice.bytes - budget));
        choice
    };
    let mut small = at(2.0 * (total + 1.0) / least);
    if small.bytes > budget || small.cost.is_infinite() {
        return None;
    }
    let mut large = all;
    for _ in 0..PRICES {
        // The price at which both points cost the same: a point below the line between them is on the hull.
        let price = (small.cost - large.cost) / (large.bytes - small.bytes);
        if !(price.is_finite() && price > 0.0) {
            break;
        }
        let middle = at(price);
        let (value, line) = (middle.cost + price * middle.bytes, small.cost + price * small.bytes);
        if value >= line * (1.0 - 1e-12) {
            break;
        }
        if middle.bytes <= budget { small = middle } else { large = middle }
    }
    // The two neighbours on the hull, one filled up and one thinned out, and the knapsack.
    let thinned = thin(items, large, budget);
    let by_knapsack = evaluate(items, &knapsack(items, budget));
    let candidates = [Some(small), thinned, Some(by_knapsack)].into_iter().flatten();
    let fitting =
        candidates.filter(|choice| choice.bytes <= budget).map(|choice| fill(items, choice, budget, None));
    let best = exchanged(items, fitting.min_by(|a, b| a.cost.total_cmp(&b.cost))?, budget);
    Some((best, bound.max(0.0)))
}

/// The most values that are tried at once.
const TRIED: usize = 48;

/// Of these items the ones of the largest or smallest cost per byte.
fn foremost(items: &[Item], chosen: impl Fn(usize) -> bool, is_largest: bool) -> Vec<usize> {
    let mut found: Vec<usize> =
        (0..items.len()).filter(|&index| chosen(index) && items[index].bytes.is_finite()).collect();
    let density = |index: &usize| items[*index].cost / items[*index].bytes.max(1.0);
    found.sort_by(|a, b| density(a).total_cmp(&density(b)));
    if is_largest {
        found.reverse();
    }
    found.truncate(TRIED);
    found
}

/// Keeps further values, but not `without`, while they fit, each time the one that saves most for its bytes.
fn fill(items: &[Item], mut choice: Choice, budget: f64, without: Option<usize>) -> Choice {
    loop {
        let tried = foremost(items, |index| choice.repeated[index] && without != Some(index), true);
        let better = tried.into_iter().filter_map(|index| {
            let mut kept = choice.kept.clone();
            kept[index] = true;
            let next = evaluate(items, &kept);
            let gain = choice.cost - next.cost;
            (next.bytes <= budget && gain > 0.0).then(|| (gain / (next.bytes - choice.bytes).max(1e-9), next))
        });
        match better.max_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((_, next)) => choice = next,
            None => return choice,
        }
    }
}

/// Computes further values again until the rest fits, each time the one that costs least for its bytes.
fn thin(items: &[Item], mut choice: Choice, budget: f64) -> Option<Choice> {
    while choice.bytes > budget {
        let tried = foremost(items, |index| choice.held[index] && items[index].cost.is_finite(), false);
        let smaller = tried.into_iter().filter_map(|index| {
            let mut kept = choice.kept.clone();
            kept[index] = false;
            let next = evaluate(items, &kept);
            let freed = choice.bytes - next.bytes;
            (freed > 0.0 && next.cost.is_finite()).then(|| ((next.cost - choice.cost) / freed, next))
        });
        choice = smaller.min_by(|a, b| a.0.total_cmp(&b.0))?.1;
    }
    Some(choice)
}

/// Larger problems are not searched for exchanges.
const EXCHANGED: usize = 600;

/// Gives up one value for others, as long as that is cheaper.
fn exchanged(items: &[Item], mut choice: Choice, budget: f64) -> Choice {
    if items.len() > EXCHANGED {
        return choice;
    }
    loop {
        let given_up = foremost(items, |index| choice.held[index] && items[index].cost.is_finite(), false);
        let better = given_up.into_iter().find_map(|index| {
            let mut kept = choice.kept.clone();
            kept[index] = false;
            let next = fill(items, evaluate(items, &kept), budget, Some(index));
            let next = fill(items, next, budget, None);
            (next.bytes <= budget && next.cost < choice.cost).then_some(next)
        });
        match better {
            Some(next) => choice = next,
            None => return choice,
        }
    }
}

/// The 0-1 knapsack over the values that the backward pass reads, each worth its own cost, with bytes in steps of a
/// thousandth of the budget: what PyTorch's `dp_knapsack` keeps.
pub(crate) fn knapsack(items: &[Item], budget: f64) -> Vec<bool> {
    const STEPS: usize = 1000;
    let step = (budget / STEPS as f64).max(f64::MIN_POSITIVE);
    let mut kept: Vec<bool> = items.iter().map(|item| item.cost.is_infinite()).collect();
    let fixed: f64 =
        items.iter().filter(|item| item.is_read && item.cost.is_infinite()).map(|i| i.bytes).sum();
    let room = ((budget - fixed).max(0.0) / step) as usize;
    let chosen: Vec<usize> = (0..items.len())
        .filter(|&index| items[index].is_read && !items[index].is_free && items[index].cost.is_finite())
        .collect();
    // best[count][room]: the most cost saved by the first `count` values.
    let mut best = vec![vec![0.0f64; room + 1]; chosen.len() + 1];
    let size = |index: usize| (items[index].bytes / step).ceil() as usize;
    for (count, &index) in chosen.iter().enumerate() {
        for room in 0..=room {
            let without = best[count][room];
            let with = room
                .checked_sub(size(index))
                .map_or(f64::NEG_INFINITY, |rest| best[count][rest] + items[index].cost);
            best[count + 1][room] = without.max(with);
        }
    }
    let mut rest = room;
    for (count, &index) in chosen.iter().enumerate().rev() {
        if best[count + 1][rest] > best[count][rest] {
            kept[index] = true;
            rest -= size(index);
        }
    }
    kept
}

/// The choice of the least cost + price bytes.
fn cheapest_at(items: &[Item], price: f64) -> Choice {
    let count = items.len();
    let (source, sink) = (2 * count, 2 * count + 1);
    let mut network = Network::new(2 * count + 2);
    for (index, item) in items.iter().enumerate().filter(|(_, item)| !item.is_free) {
        let (needed, repeated) = (index, count + index);
        if item.is_read {
            network.edge(source, needed, f64::INFINITY);
        }
        network.edge(needed, repeated, price * item.bytes);
        network.edge(repeated, sink, item.cost);
        for &operand in item.operands.iter().filter(|&&operand| !items[operand].is_free) {
            network.edge(repeated, operand, f64::INFINITY);
        }
    }
    let reached = network.minimum_cut(source, sink);
    let kept: Vec<bool> = (0..count).map(|index| reached[index] && !reached[count + index]).collect();
    evaluate(items, &kept)
}

/// A flow network with Dinic's algorithm (E. A. Dinic, 1970).
struct Network {
    /// For each node, its edges.
    edges_of: Vec<Vec<usize>>,
    /// Target and what is left of the capacity; the reverse of edge `e` is `e ^ 1`.
    edges: Vec<(usize, f64)>,
}

impl Network {
    fn new(nodes: usize) -> Network {
        Network { edges_of: vec![Vec::new(); nodes], edges: Vec::new() }
    }

    fn edge(&mut self, from: usize, to: usize, capacity: f64) {
        self.edges_of[from].push(self.edges.len());
        self.edges.push((to, capacity));
        self.edges_of[to].push(self.edges.len());
        self.edges.push((from, 0.0));
    }

    /// For each node, its distance from the source over edges with capacity left.
    fn levels(&self, source: usize) -> Vec<usize> {
        let mut levels = vec![usize::MAX; self.edges_of.len()];
        levels[source] = 0;
        let mut open = std::collections::VecDeque::from([source]);
        while let Some(node) = open.pop_front() {
            for &edge in &self.edges_of[node] {
                let (to, left) = self.edges[edge];
                if left > 0.0 && levels[to] == usize::MAX {
                    levels[to] = levels[node] + 1;
                    open.push_back(to);
                }
            }
        }
        levels
    }

    /// The nodes on the source's side of a minimum cut.
    fn minimum_cut(&mut self, source: usize, sink: usize) -> Vec<bool> {
        loop {
            let levels = self.levels(source);
            if levels[sink] == usize::MAX {
                return levels.into_iter().map(|level| level != usize::MAX).collect();
            }
            let mut next = vec![0; self.edges_of.len()];
            while self.push(source, sink, &levels, &mut next) {}
        }
    }

    /// Sends flow along one path of rising levels; whether there is one. The path is kept by hand: graphs are deep.
    fn push(&mut self, source: usize, sink: usize, levels: &[usize], next: &mut [usize]) -> bool {
        let mut path: Vec<usize> = Vec::new();
        let mut node = source;
        while node != sink {
            match self.edges_of[node].get(next[node]) {
                Some(&edge) => {
                    let (to, left) = self.edges[edge];
                    if left > 0.0 && levels[to] == levels[node] + 1 {
                        path.push(edge);
                        node = to;
                    } else {
                        next[node] += 1;
                    }
                }
                // A dead end: go back over the edge that led here.
                None => match path.pop() {
                    Some(edge) => {
                        node = self.edges[edge ^ 1].0;
                        next[node] += 1;
                    }
                    None => return false,
                },
            }
        }
        let flow = path.iter().map(|&edge| self.edges[edge].1).fold(f64::INFINITY, f64::min);
        for edge in path {
            self.edges[edge].1 -= flow;
            self.edges[edge ^ 1].1 += flow;
        }
        true
    }
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
