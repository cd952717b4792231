//! Random bits from an explicit state.

use super::ParseOp;
use super::checks::{element_type, operand_count, shapes};
use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Operation, TextForm, localise_same};
use crate::rule::Rule;
use crate::text::{OpParser, OpPrinter};
use crate::traits::Traits;
use crate::types::TensorType;
use partita_base::{DType, Result};

/// The next state and 64 random bits for each element, by Threefry-2x32 with 20 rounds (Salmon et al.,
/// "Parallel random numbers: as easy as 1, 2, 3", 2011). The state is a key and a counter; element i is
/// the encrypted counter plus i, its first half in the low bits, as XLA computes it.
#[derive(Clone, PartialEq, Debug)]
pub struct RngBitGenerator {
    /// The type of the bits.
    pub ty: TensorType,
}

const NAME: &str = "stablehlo.rng_bit_generator";

/// Encrypts a block with a key.
fn threefry(key: u64, block: u64) -> u64 {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let halves = |bits: u64| [bits as u32, (bits >> 32) as u32];
    let [k0, k1] = halves(key);
    let keys = [k0, k1, k0 ^ k1 ^ 0x1BD1_1BDA];
    let [mut a, mut b] = halves(block);
    (a, b) = (a.wrapping_add(keys[0]), b.wrapping_add(keys[1]));
    for round in 0..5 {
        for rotation in ROTATIONS[round % 2] {
            a = a.wrapping_add(b);
            b = b.rotate_left(rotation) ^ a;
        }
        a = a.wrapping_add(keys[(round + 1) % 3]);
        b = b.wrapping_add(keys[(round + 2) % 3]).wrapping_add(round as u32 + 1);
    }
    u64::from(b) << 32 | u64::from(a)
}

impl Operation for RngBitGenerator {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(NAME, operands, 1)?;
        let state = TensorType::new(DType::U64, [2]);
        shapes(
            *operands[0] == state,
            format!("the state of `{NAME}` is a key and a counter"),
            state.to_string(),
            operands[0].to_string(),
        )?;
        element_type(NAME, self.ty.dtype == DType::U64, "ui64", self.ty.dtype)?;
        Ok(vec![state, self.ty.clone()])
    }

    /// The state counts all elements.
    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        Rule::whole(&[&operands[0].shape], &[&results[0].shape, &results[1].shape])
    }

    fn cost(&self, _: &[&TensorType], results: &[&TensorType]) -> Cost {
        Cost { flops: 100.0 * results[1].element_count() as f64, bytes: results[1].bytes() as f64 }
    }

    fn gradient(&self, _: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Ok(vec![None])
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let state = operands[0].to_i128();
        let (key, counter) = (state[0] as u64, state[1] as u64);
        let count = results[1].element_count() as u64;
        let bits: Vec<u64> = (0..count).map(|i| threefry(key, counter.wrapping_add(i))).collect();
        let next = Literal::new([2], vec![key, counter.wrapping_add(count)]);
        Ok(vec![next, Literal::new(results[1].shape.clone(), bits)])
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 2)
    }
}

// ---- text ----

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[(NAME, parse_rng_bit_generator)];

impl TextForm for RngBitGenerator {
    /// `stablehlo.rng_bit_generator %0, algorithm = THREE_FRY : (T) -> (T, U)`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.pretty(NAME, ", algorithm = THREE_FRY");
    }
}

fn parse_rng_bit_generator(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let word = if op.generic()? {
        op.keyword_of("rng_algorithm").unwrap_or_default().to_string()
    } else {
        op.operands()?;
        op.clause("algorithm")?;
        let word = op.parser.text().to_string();
        op.parser.advance();
        op.types()?;
        word
    };
    op.arity(1)?;
    let ty = match &op.result_types[..] {
        [_, ty] if word == "THREE_FRY" && ty.dtype == DType::U64 => ty.clone(),
        _ => {
            return Err(op
                .error("E144", format!("`{NAME}` of this kind is not supported"))
                .expected("algorithm `THREE_FRY` and a result of ui64")
                .found(format!("algorithm `{word}`")));
        }
    };
    op.finish(RngBitGenerator { ty })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, check_rule, refusal};

    #[test]
    fn blocks_agree_with_the_published_vectors() {
        // From the authors' library Random123: counter, key, encrypted counter, low halves first.
        let rows: [[u32; 6]; 3] = [
            [0, 0, 0, 0, 0x6b20_0159, 0x99ba_4efe],
            [u32::MAX, u32::MAX, u32::MAX, u32::MAX, 0x1cb9_96fc, 0xbb00_2be7],
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344, 0xc492_3a9c, 0x483d_f7a0],
        ];
        let join = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        for [c0, c1, k0, k1, r0, r1] in rows {
            assert_eq!(threefry(join(k0, k1), join(c0, c1)), join(r0, r1));
        }
    }

    #[test]
    fn the_state_continues_where_the_bits_end() {
        let state = Literal::new([2], vec![7u64, u64::MAX - 1]);
        let all = apply(RngBitGenerator { ty: TensorType::new(DType::U64, [4]) }, std::slice::from_ref(&state));
        let first = apply(RngBitGenerator { ty: TensorType::new(DType::U64, [3, 1]) }, &[state]);
        let last = apply(RngBitGenerator { ty: TensorType::new(DType::U64, []) }, &first[..1]);
        assert_eq!(all[1].to_i128(), [first[1].to_i128(), last[1].to_i128()].concat());
        assert_eq!((all[0].to_i128(), &all[0]), (vec![7, 2], &last[0]));
    }

    #[test]
    fn it_is_not_cut_and_other_types_are_refused() {
        let op = RngBitGenerator { ty: TensorType::new(DType::U64, [4]) };
        check_rule(op.clone(), &[Literal::new([2], vec![1u64, 2])]);
        assert!(refusal(op, &[TensorType::new(DType::U64, [3])]).contains("E104"));
        let bytes = RngBitGenerator { ty: TensorType::new(DType::U8, [4]) };
        assert!(refusal(bytes, &[TensorType::new(DType::U64, [2])]).contains("E103"));
    }
}
