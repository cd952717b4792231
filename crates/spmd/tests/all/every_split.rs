//! Every assignment of ordered mesh axes to an op's factors gives the result of one device. The
//! cases are generated from the factor rules: to cover a new op, add one application of it to the
//! table.

use crate::common::splits::{check_case, full_axes};
use crate::common::table::{PLACED, cases};
use partita_base::DType;
use partita_ir::{Op, Operation, composites};
use partita_mesh::Mesh;

#[test]
fn the_table_has_every_op_and_every_composite() {
    let table = cases(4, DType::F64);
    for name in Op::VARIANTS {
        let is_applied = table.iter().any(|(_, op, _)| op.variant() == *name);
        assert!(is_applied != PLACED.contains(name), "`{name}` has a case, or is placed by partition");
    }
    for template in composites::ALL {
        let applies = |op: &Op| matches!(op, Op::Composite(c) if c.name() == template.name);
        assert!(table.iter().any(|(_, op, _)| applies(op)), "no case applies `{}`", template.name);
    }
}

fn check_all(mesh: &[(&str, usize)], at_least: usize) {
    let mesh = Mesh::new("m", mesh);
    let mut tried = 0;
    for n in [4, 5, 2, 1] {
        for case in cases(n, DType::F64) {
            tried += check_case(&case, &mesh, &full_axes(&mesh)).unwrap_or_else(|e| panic!("{e}"));
        }
    }
    assert!(tried > at_least, "only {tried} splits were tried");
}

#[test]
fn every_split_over_two_equals_one_device() {
    check_all(&[("x", 2)], 500);
}

#[test]
fn every_split_over_three_equals_one_device() {
    check_all(&[("x", 3)], 500);
}

#[test]
fn every_split_over_four_equals_one_device() {
    check_all(&[("x", 4)], 500);
}

#[test]
fn every_split_over_two_by_two_equals_one_device() {
    check_all(&[("x", 2), ("y", 2)], 1500);
}
