//! Tests resharding against the oracle: random layouts, and well-known cases.

use partita_mesh::oracle::{apply_step, collect, distribute};
use partita_mesh::{
    AxisList, AxisRef, Combiner, DimSharding, LinkCost, Mesh, ReshardStep, Sharding, Step, permute_pairs,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// A cost in elements: those that a rank sends, plus 1024 for each collective. Whole numbers.
struct Elements<'a> {
    mesh: &'a Mesh,
    shape: &'a [usize],
}

impl LinkCost for Elements<'_> {
    fn step_s(&self, before: &Sharding, step: &ReshardStep) -> f64 {
        let local = |s: &Sharding| s.largest_local_elements(self.mesh, self.shape);
        let (now, then) = (local(before), local(&step.after));
        let others = |axes: &[AxisRef]| now - now / self.mesh.axes_size(axes);
        let sent = match &step.step {
            Step::Slice { .. } | Step::ToPartial { .. } => return 1.0,
            Step::AllGather { .. } => then - now,
            Step::ReduceScatter { .. } => now - then,
            Step::AllReduce { axes, .. } => 2 * others(axes),
            Step::AllToAll { axes, .. } => others(axes),
            Step::Permute {} => now,
        };
        (1024 + sent) as f64
    }
}

fn reshard(mesh: &Mesh, from: &Sharding, to: &Sharding, shape: &[usize]) -> Vec<ReshardStep> {
    partita_mesh::reshard(mesh, from, to, shape, &Elements { mesh, shape })
}

/// Small random decisions; those past the end are 0, so that shrinking leads to simple cases.
struct Choices(std::vec::IntoIter<u8>);

impl Choices {
    fn below(&mut self, n: usize) -> usize {
        self.0.next().unwrap_or(0) as usize % n
    }
}

/// The mesh's axes, some divided into parts.
fn some_axes(mesh: &Mesh, choices: &mut Choices) -> Vec<AxisRef> {
    let mut axes = Vec::new();
    for axis in 0..mesh.axes.len() {
        let full = mesh.full_axis(axis);
        let first = [1, 1, 2, 3][choices.below(4)];
        match full.split(first) {
            Some((major, minor)) if first > 1 => axes.extend([major, minor]),
            _ => axes.push(full),
        }
    }
    axes
}

/// A random layout: each axis, in random order, splits a dimension, is partial, or is not used.
fn some_sharding(mesh: &Mesh, shape: &[usize], choices: &mut Choices) -> Sharding {
    let mut sharding = Sharding::replicated(shape.len());
    let combiner = Combiner::ALL[choices.below(6)];
    let mut axes = some_axes(mesh, choices);
    while !axes.is_empty() {
        let axis = axes.remove(choices.below(axes.len()));
        match choices.below(shape.len() + 3) {
            dim if dim < shape.len() => sharding.dims[dim].axes.push(axis),
            use_ if use_ == shape.len() => sharding = sharding.with_partial([axis], combiner),
            _ => {}
        }
    }
    for (dim, &size) in sharding.dims.iter_mut().zip(shape) {
        let units: Vec<usize> = (1..=size.max(1)).filter(|unit| size.is_multiple_of(*unit)).collect();
        if choices.below(3) == 1 {
            dim.unit = units[choices.below(units.len())];
            dim.by_element = choices.below(dim.axes.len() + 1);
        }
    }
    sharding
}

fn some_problem(bytes: Vec<u8>) -> (Mesh, Vec<usize>, Sharding, Sharding) {
    let mut choices = Choices(bytes.into_iter());
    let sizes: Vec<usize> = (0..=choices.below(3)).map(|_| [2, 4, 3, 2, 6, 1, 4][choices.below(7)]).collect();
    let named: Vec<(&str, usize)> = ["x", "y", "z"].into_iter().zip(sizes).collect();
    let mesh = Mesh::new("m", &named);
    let shape: Vec<usize> =
        (0..choices.below(4)).map(|_| [8, 4, 6, 12, 5, 7, 3, 1, 2, 0, 16][choices.below(11)]).collect();
    let from = some_sharding(&mesh, &shape, &mut choices);
    let to = some_sharding(&mesh, &shape, &mut choices);
    (mesh, shape, from, to)
}

/// Noise as a pure function of its arguments.
fn noise(index: usize, position: usize) -> i64 {
    ((index * 31 + position * 17 + 5) as i64).wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64) >> 40
}

/// Runs the steps on a tensor and checks the final shard of every rank.
fn check(mesh: &Mesh, shape: &[usize], from: &Sharding, to: &Sharding, steps: &[ReshardStep]) {
    let global: Vec<i64> = (0..shape.iter().product::<usize>() as i64).map(|i| i * 7 - 11).collect();
    let mut values = distribute(mesh, from, shape, &global, noise);
    assert_eq!(collect(mesh, from, shape, &values).as_ref(), Ok(&global), "distribute and collect agree");
    let mut before = from;
    for step in steps {
        step.after.validate(mesh, shape).unwrap();
        values = apply_step(mesh, shape, before, step, values);
        assert_eq!(collect(mesh, &step.after, shape, &values).as_ref(), Ok(&global), "after {step:?}");
        before = &step.after;
    }
    assert_eq!(collect(mesh, to, shape, &values).as_ref(), Ok(&global), "{steps:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, rng_seed: RngSeed::Fixed(20), ..ProptestConfig::default() })]

    #[test]
    fn any_layout_reaches_any_other(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let (mesh, shape, from, to) = some_problem(bytes);
        from.validate(&mesh, &shape).unwrap();
        to.validate(&mesh, &shape).unwrap();
        let steps = reshard(&mesh, &from, &to, &shape);
        prop_assert_eq!(steps.is_empty(), from.same_layout(&to, &mesh, &shape));
        prop_assert!(steps.last().is_none_or(|last| last.after == to));
        check(&mesh, &shape, &from, &to, &steps);
    }

    #[test]
    fn normal_form_is_stable_and_means_the_same(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let (mesh, shape, from, _) = some_problem(bytes);
        let mut normal = from.clone();
        normal.normalise(&mesh, &shape);
        let mut again = normal.clone();
        again.normalise(&mesh, &shape);
        prop_assert_eq!(&again, &normal);
        normal.validate(&mesh, &shape).unwrap();
        check(&mesh, &shape, &from, &normal, &[]);
    }
}

fn mesh() -> Mesh {
    Mesh::new("m", &[("x", 2), ("y", 2), ("z", 4)])
}

fn layout(dims: &[&[AxisRef]]) -> Sharding {
    let over = |axes: &&[AxisRef]| DimSharding::over(axes.iter().copied());
    Sharding { dims: dims.iter().map(over).collect(), partial: Vec::new() }
}

/// The steps from one layout to another, checked against the oracle.
fn steps(mesh: &Mesh, shape: &[usize], from: &Sharding, to: &Sharding) -> Vec<Step> {
    let steps = reshard(mesh, from, to, shape);
    check(mesh, shape, from, to, &steps);
    steps.into_iter().map(|s| s.step).collect()
}

fn list(axes: &[AxisRef]) -> AxisList {
    AxisList::from_slice(axes)
}

#[test]
fn what_one_collective_does_takes_one_collective() {
    let mesh = mesh();
    let (x, y) = (mesh.full_axis(0), mesh.full_axis(1));
    let (whole, rows, columns) = (layout(&[&[], &[]]), layout(&[&[x], &[]]), layout(&[&[], &[x]]));
    let partial = whole.clone().with_partial([x], Combiner::Sum);
    let combiner = Combiner::Sum;
    for shape in [[16, 16], [5, 3], [48, 64]] {
        let steps = |from: &Sharding, to: &Sharding| steps(&mesh, &shape, from, to);
        let axes = list(&[x]);
        assert_eq!(steps(&partial, &whole), [Step::AllReduce { axes: axes.clone(), combiner }]);
        assert_eq!(steps(&partial, &rows), [Step::ReduceScatter { dim: 0, axes: axes.clone(), combiner }]);
        assert_eq!(steps(&rows, &columns), [Step::AllToAll { from_dim: 0, to_dim: 1, axes: axes.clone() }]);
        assert_eq!(steps(&rows, &whole), [Step::AllGather { dim: 0, axes: axes.clone() }]);
        assert_eq!(steps(&whole, &rows), [Step::Slice { dim: 0, axes: axes.clone() }]);
        assert_eq!(steps(&whole, &partial), [Step::ToPartial { axes, combiner }]);
        assert_eq!(steps(&rows, &rows), []);
        let both = layout(&[&[x, y], &[]]);
        assert_eq!(steps(&both, &whole), [Step::AllGather { dim: 0, axes: list(&[x, y]) }]);
        assert_eq!(steps(&whole, &both), [Step::Slice { dim: 0, axes: list(&[x, y]) }]);
        assert_eq!(
            steps(&both, &layout(&[&[], &[x, y]])),
            [Step::AllToAll { from_dim: 0, to_dim: 1, axes: list(&[x, y]) }]
        );
        assert_eq!(steps(&both, &rows), [Step::AllGather { dim: 0, axes: list(&[y]) }]);
        let sums = whole.clone().with_partial([x, y], Combiner::Sum);
        assert_eq!(steps(&sums, &both), [Step::ReduceScatter { dim: 0, axes: list(&[x, y]), combiner }]);
    }
}

#[test]
fn moving_the_same_pieces_to_other_ranks_is_one_permute() {
    let mesh = mesh();
    let (x, y, z) = (mesh.full_axis(0), mesh.full_axis(1), mesh.full_axis(2));
    let one = |from: &[&[AxisRef]], to: &[&[AxisRef]]| {
        assert_eq!(
            steps(&mesh, &[16, 16], &layout(from), &layout(to)),
            [Step::Permute {}],
            "{from:?} to {to:?}"
        );
    };
    one(&[&[x], &[]], &[&[y], &[]]);
    one(&[&[x, y], &[]], &[&[y, x], &[]]);
    one(&[&[x], &[y]], &[&[y], &[x]]);
    one(&[&[z], &[]], &[&[x, y], &[]]);
    one(&[&[z], &[x]], &[&[x, y], &[AxisRef { axis: 2, pre: 2, size: 2 }]]);
}

#[test]
fn uneven_pieces_do_not_permute_where_local_shapes_would_change() {
    let mesh = mesh();
    let (x, y) = (mesh.full_axis(0), mesh.full_axis(1));
    let found = steps(&mesh, &[10], &layout(&[&[x, y]]), &layout(&[&[y, x]]));
    assert_eq!(
        found,
        [Step::AllGather { dim: 0, axes: list(&[x, y]) }, Step::Slice { dim: 0, axes: list(&[y, x]) }]
    );
}

#[test]
fn slices_come_before_what_they_make_cheaper() {
    let mesh = mesh();
    let (x, y) = (mesh.full_axis(0), mesh.full_axis(1));
    let combiner = Combiner::Sum;
    let found =
        steps(&mesh, &[16, 16], &layout(&[&[], &[]]).with_partial([x], combiner), &layout(&[&[y], &[]]));
    assert_eq!(
        found,
        [Step::Slice { dim: 0, axes: list(&[y]) }, Step::AllReduce { axes: list(&[x]), combiner }]
    );
    let found = steps(&mesh, &[4096, 16], &layout(&[&[x], &[]]), &layout(&[&[y, x], &[]]));
    assert_eq!(found, [Step::Slice { dim: 0, axes: list(&[y]) }, Step::Permute {}]);
}

#[test]
fn a_part_of_an_axis_moves_alone() {
    let mesh = mesh();
    let z = mesh.full_axis(2);
    let (major, minor) = z.split(2).unwrap();
    let found = steps(&mesh, &[16, 16], &layout(&[&[z], &[]]), &layout(&[&[major], &[minor]]));
    assert_eq!(found, [Step::AllToAll { from_dim: 0, to_dim: 1, axes: list(&[minor]) }]);
    let found = steps(&mesh, &[16, 16], &layout(&[&[z], &[]]), &layout(&[&[major], &[]]));
    assert_eq!(found, [Step::AllGather { dim: 0, axes: list(&[minor]) }]);
    let sum = layout(&[&[], &[]]).with_partial([z], Combiner::Sum);
    let found = steps(&mesh, &[64, 64], &sum, &layout(&[&[major], &[minor]]));
    let scatter = |dim, axis| Step::ReduceScatter { dim, axes: list(&[axis]), combiner: Combiner::Sum };
    assert_eq!(found, [scatter(1, minor), scatter(0, major)]);
}

#[test]
fn another_unit_is_another_layout() {
    let mesh = mesh();
    let x = mesh.full_axis(0);
    let (plain, heads) = (layout(&[&[x]]), layout(&[&[x]]).with_unit(0, 4));
    assert_eq!(steps(&mesh, &[16], &plain, &heads), []);
    let found = steps(&mesh, &[12], &plain, &heads);
    assert_eq!(
        found,
        [Step::AllGather { dim: 0, axes: list(&[x]) }, Step::Slice { dim: 0, axes: list(&[x]) }]
    );
}

#[test]
fn what_is_stored_by_element_is_gathered_into_pieces_of_whole_units() {
    let mesh = Mesh::new("m", &[("tp", 3), ("fsdp", 2)]);
    let (tp, fsdp) = (mesh.full_axis(0), mesh.full_axis(1));
    let combiner = Combiner::Sum;
    // Four heads of 4 over three ranks are 2, 1 and 1 heads; their halves are not whole heads.
    let (heads, used) = (layout(&[&[tp, fsdp]]).with_unit(0, 4), layout(&[&[tp]]).with_unit(0, 4));
    let stored = heads.clone().with_by_element(0, 1);
    assert_eq!(stored.display(&mesh), "[{tp; unit=4; fsdp}]");
    assert_eq!(stored.dims[0].extents(16), [4, 4, 2, 2, 2, 2]);
    assert_eq!(heads.dims[0].extents(16), [4, 4, 4, 0, 4, 0]);
    let held: Vec<(usize, usize)> = (0..6)
        .map(|r| (stored.local_offset(&mesh, &[16], r)[0], stored.local_shape(&mesh, &[16], r)[0]))
        .collect();
    assert_eq!(held, [(0, 4), (4, 4), (8, 2), (10, 2), (12, 2), (14, 2)]);
    let axes = list(&[fsdp]);
    assert_eq!(steps(&mesh, &[16], &stored, &used), [Step::AllGather { dim: 0, axes: axes.clone() }]);
    assert_eq!(steps(&mesh, &[16], &used, &stored), [Step::Slice { dim: 0, axes: axes.clone() }]);
    let sum = used.clone().with_partial([fsdp], combiner);
    assert_eq!(steps(&mesh, &[16], &sum, &stored), [Step::ReduceScatter { dim: 0, axes, combiner }]);
    assert_eq!(
        steps(&mesh, &[16], &stored, &layout(&[&[]])),
        [Step::AllGather { dim: 0, axes: list(&[tp, fsdp]) }]
    );
    // Without an axis that splits by units, the unit has no effect.
    let mut alone = layout(&[&[fsdp]]).with_unit(0, 4).with_by_element(0, 1);
    alone.normalise(&mesh, &[12]);
    assert_eq!(alone, layout(&[&[fsdp]]));
}

#[test]
fn differing_combiners_resolve_first() {
    let mesh = mesh();
    let (x, y) = (mesh.full_axis(0), mesh.full_axis(1));
    let partial = |axes: &[AxisRef], combiner| layout(&[&[]]).with_partial(axes.iter().copied(), combiner);
    let found = steps(&mesh, &[8], &partial(&[x], Combiner::Sum), &partial(&[x, y], Combiner::Max));
    let (sum, max) = (Combiner::Sum, Combiner::Max);
    let reduce = Step::AllReduce { axes: list(&[x]), combiner: sum };
    assert_eq!(found, [reduce, Step::ToPartial { axes: list(&[x, y]), combiner: max }]);
    let found = steps(&mesh, &[8], &partial(&[x], sum), &partial(&[x, y], sum));
    assert_eq!(found, [Step::ToPartial { axes: list(&[y]), combiner: sum }]);
}

#[test]
fn layouts_of_a_mesh_of_thousands_are_planned() {
    let mesh = Mesh::new("m", &[("dp", 64), ("tp", 16), ("pp", 4)]);
    let (dp, tp) = (mesh.full_axis(0), mesh.full_axis(1));
    let from = layout(&[&[dp], &[tp], &[]]);
    let to = layout(&[&[], &[dp], &[tp]]);
    let found = reshard(&mesh, &from, &to, &[4096, 4096, 4096]);
    let moved = |from_dim, to_dim, axis| Step::AllToAll { from_dim, to_dim, axes: list(&[axis]) };
    let found: Vec<Step> = found.into_iter().map(|s| s.step).collect();
    assert_eq!(found, [moved(1, 2, tp), moved(0, 1, dp)]);
}

#[test]
fn who_has_it_keeps_it_in_a_permute() {
    let mesh = Mesh::new("m", &[("x", 2), ("y", 2)]);
    let (x, y) = (mesh.full_axis(0), mesh.full_axis(1));
    let pairs = permute_pairs(&mesh, &layout(&[&[x]]), &layout(&[&[y]]), &[8]);
    assert_eq!(pairs, [(0, 0), (2, 1), (1, 2), (3, 3)]);
}
