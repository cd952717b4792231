//! Choices against every choice of small problems, and against the knapsack of PyTorch on random graphs.

use super::*;

/// A sequence of numbers from a seed (Lehmer's generator).
fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(2_654_435_761) % 2_147_483_646 + 1;
    move |below| {
        state = state * 48_271 % 2_147_483_647;
        (state >> 7) as usize % below
    }
}

/// A random graph whose ops read one to three of the six ops before them; one in nine cannot be repeated, one in seven has
/// no bytes of its own.
fn random(seed: u64, count: usize) -> Vec<Item> {
    let mut below = numbers(seed);
    let mut items: Vec<Item> = Vec::new();
    for index in 0..count {
        let mut operands: Vec<usize> = Vec::new();
        for _ in 0..1 + below(3) {
            if index > 0 {
                operands.push(index - 1 - below(index.min(6)));
            }
        }
        operands.sort_unstable();
        operands.dedup();
        let is_view = index > 0 && below(7) == 0;
        items.push(Item {
            bytes: if is_view { f64::INFINITY } else { (1 + below(40)) as f64 },
            cost: if is_view {
                0.0
            } else if below(9) == 0 {
                f64::INFINITY
            } else {
                (1 + below(100)) as f64
            },
            operands,
            is_read: below(3) > 0,
            is_free: false,
        });
    }
    items
}

fn everything(items: &[Item]) -> Choice {
    evaluate(items, &items.iter().map(|item| item.bytes.is_finite()).collect::<Vec<_>>())
}

#[test]
fn a_chain_keeps_one_small_value_that_stands_for_the_large_ones_behind_it() {
    // Op 0 makes 1 byte, from which three cheap ops make 10 bytes each.
    let large =
        |operand| Item { bytes: 10.0, cost: 1.0, operands: vec![operand], is_read: true, is_free: false };
    let first = Item { bytes: 1.0, cost: 100.0, operands: vec![], is_read: false, is_free: false };
    let items = vec![first, large(0), large(1), large(2)];
    let (choice, bound) = within(&items, 5.0).unwrap();
    assert_eq!((choice.bytes, choice.cost), (1.0, 3.0));
    assert!(bound <= choice.cost && bound > 0.0);
    // The knapsack knows only what is read: nothing fits, and the whole chain is computed again.
    assert_eq!(evaluate(&items, &knapsack(&items, 5.0)).cost, 103.0);
    assert_eq!(within(&items, 30.0).unwrap(), (everything(&items), 0.0));
}

#[test]
fn what_cannot_be_repeated_is_kept_or_nothing_fits() {
    let fixed = Item { bytes: 8.0, cost: f64::INFINITY, operands: vec![], is_read: true, is_free: false };
    let behind = Item { bytes: 4.0, cost: 2.0, operands: vec![0], is_read: true, is_free: false };
    let items = vec![fixed, behind];
    let (choice, _) = within(&items, 10.0).unwrap();
    assert_eq!((choice.held.clone(), choice.cost), (vec![true, false], 2.0));
    assert_eq!(within(&items, 7.0), None);
}

/// Every choice of twelve values: none is cheaper than the bound, and the choice found is the best in nearly all cases.
#[test]
fn small_problems_against_every_choice() {
    let (mut cases, mut best) = (0, 0);
    for seed in 0..60 {
        let items = random(seed, 12);
        let all = everything(&items).bytes;
        for share in [0.2, 0.4, 0.6, 0.8] {
            let budget = all * share;
            let choices = (0..1u32 << items.len()).map(|bits| {
                let kept = (0..items.len()).map(|i| bits >> i & 1 == 1 && items[i].bytes.is_finite());
                evaluate(&items, &kept.collect::<Vec<_>>())
            });
            let fitting = choices.filter(|choice| choice.bytes <= budget && choice.cost.is_finite());
            let optimum = fitting.map(|choice| choice.cost).min_by(f64::total_cmp);
            let found = within(&items, budget);
            assert_eq!(found.is_some(), optimum.is_some(), "seed {seed} share {share}");
            let (Some((choice, bound)), Some(optimum)) = (found, optimum) else { continue };
            assert!(choice.bytes <= budget && choice == evaluate(&items, &choice.kept));
            assert!(bound <= optimum * (1.0 + 1e-9) && choice.cost >= optimum, "seed {seed} share {share}");
            cases += 1;
            best += usize::from(choice.cost == optimum);
        }
    }
    assert!(cases > 100 && best * 10 >= cases * 9, "{best} of {cases}");
}

/// On the same graphs, bytes and costs, no choice is dearer than the knapsack's; most are cheaper.
#[test]
fn never_dearer_than_the_knapsack() {
    let (mut cases, mut cheaper, mut ours, mut theirs) = (0, 0, 0.0, 0.0);
    for seed in 0..20 {
        let items = random(1000 + seed, 120);
        let all = everything(&items).bytes;
        for share in [0.3, 0.5, 0.7, 0.9] {
            let knapsack = evaluate(&items, &knapsack(&items, all * share));
            let Some((choice, bound)) = within(&items, all * share) else { continue };
            assert!(choice.bytes <= all * share && bound <= choice.cost * (1.0 + 1e-9));
            if knapsack.bytes <= all * share && knapsack.cost.is_finite() {
                assert!(choice.cost <= knapsack.cost, "seed {seed} share {share}");
                (cases, cheaper) = (cases + 1, cheaper + usize::from(choice.cost < knapsack.cost));
                (ours, theirs) = (ours + choice.cost, theirs + knapsack.cost);
            }
        }
    }
    assert!(cases > 30 && cheaper * 2 > cases, "{cheaper} of {cases}");
    assert!(ours < 0.9 * theirs, "{ours} {theirs}");
}
