//! Projects a value's layout onto an op's factors and back.

use partita_ir::{FactorId, FactorKind, Rule};
use partita_mesh::{AxisList, AxisRef, DimSharding};

/// Distributes a dimension's axes over its factors, major to minor. An axis goes to the first factor
/// that is not fully split yet, even if it does not divide that factor (an uneven split). The last
/// factor takes all remaining axes.
pub fn axes_of_factors(rule: &Rule, factors: &[FactorId], axes: &[AxisRef]) -> Vec<(FactorId, AxisList)> {
    let mut out: Vec<(FactorId, AxisList)> = factors.iter().map(|&f| (f, AxisList::new())).collect();
    let mut current = 0;
    let mut taken = 1;
    for &axis in axes {
        while current < out.len() {
            let size = rule.factors[out[current].0].size;
            let last = current + 1 == out.len();
            // Continue with the next factor if this one is fully split or has size 1.
            if !last && (taken >= size || size == 1) {
                current += 1;
                taken = 1;
                continue;
            }
            out[current].1.push(axis);
            taken *= axis.size;
            break;
        }
    }
    out
}

/// The layout of one dimension whose factors are split over `assignment`. `unit` is the dimension's
/// unit, which applies if its major factor is split; `by_element` is the number of that factor's
/// minor-most axes that split by single elements. `None` if no contiguous split expresses it: a
/// minor factor is split while the one above it is not fully split, or a shard ends within an
/// element of the major factor.
pub fn dim_sharding(
    rule: &Rule,
    factors: &[FactorId],
    assignment: &[AxisList],
    unit: usize,
    by_element: usize,
) -> Option<DimSharding> {
    let mut axes = AxisList::new();
    let mut result_unit = 1;
    let mut complete = true;
    for (position, &factor) in factors.iter().enumerate() {
        let size = rule.factors[factor].size;
        let list = &assignment[factor];
        if list.is_empty() {
            complete &= size == 1;
            continue;
        }
        if !complete {
            return None;
        }
        let ways: usize = list.iter().map(|a| a.size).product();
        let below: usize = factors[position + 1..].iter().map(|&f| rule.factors[f].size).product();
        if position == 0 && by_element > 0 {
            let dim = DimSharding { axes: list.clone(), unit, by_element };
            let in_whole = below <= 1 || dim.extents(size * below).iter().all(|e| e.is_multiple_of(below));
            let alone = factors[1..].iter().all(|&f| assignment[f].is_empty());
            return (in_whole && alone).then_some(dim);
        }
        // The unit applies to the major factor, even if single elements of it would divide evenly.
        result_unit = if position == 0 && unit.is_multiple_of(below.max(1)) { unit } else { below.max(1) };
        complete = size == ways && result_unit == below.max(1);
        axes.extend(list.iter().copied());
    }
    Some(DimSharding { axes, unit: result_unit, by_element: 0 })
}

/// Whether axes may be put on a factor at all.
pub fn may_split(rule: &Rule, factor: FactorId) -> bool {
    matches!(
        rule.factors[factor].kind,
        FactorKind::Pass | FactorKind::Reduce(_) | FactorKind::Exchange | FactorKind::Window(_)
    )
}
