//! Conversions of f16 and bf16 from and to f32, to nearest, ties to even: without branches, so that the
//! compiler vectorises loops over them. A NaN stays a NaN and becomes quiet.

use half::{bf16, f16};

#[inline(always)]
pub(crate) fn bf16_to_f32(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

#[inline(always)]
pub(crate) fn bf16_from_f32(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    bf16::from_bits(if x.is_nan() { quiet } else { rounded } as u16)
}

/// The number of fraction bits that an f32 has more than an f16.
const MORE: u32 = 23 - 10;
/// The difference of the exponent biases, at the position of the exponent in an f32.
const SHIFT: u32 = (127 - 15) << 23;
/// The bits of 2^-14, the smallest normal f16.
const MIN_NORMAL: u32 = SHIFT + (1 << 23);
const INFINITE: u32 = 0xff << 23;

#[inline(always)]
pub(crate) fn f16_to_f32(x: f16) -> f32 {
    let bits = u32::from(x.to_bits());
    let (sign, magnitude) = ((bits & 0x8000) << 16, (bits & 0x7fff) << MORE);
    let normal = magnitude + SHIFT;
    // The smallest exponent has the same meaning as the next one, but no implicit leading bit, which is
    // subtracted here.
    let small = f32::from_bits(magnitude + MIN_NORMAL) - f32::from_bits(MIN_NORMAL);
    let not_finite = magnitude | INFINITE;
    let is_number = magnitude <= 0x1f << 23;
    let quiet = if is_number { 0 } else { 1 << 22 };
    let found = if magnitude < 1 << 23 { small.to_bits() } else { normal };
    f32::from_bits(sign | quiet | if magnitude >= 0x1f << 23 { not_finite } else { found })
}

#[inline(always)]
pub(crate) fn f16_from_f32(x: f32) -> f16 {
    // From here on numbers exceed the exponent range and round to infinity.
    const TOO_LARGE: u32 = (127 + 16) << 23;
    // In the sum of this with a small number, the last bit has the weight of the last bit of an f16.
    const ONE_HALF: u32 = 126 << 23;
    let bits = x.to_bits();
    let (sign, magnitude) = (bits >> 16 & 0x8000, bits & !(1 << 31));
    let is_odd = magnitude >> MORE & 1;
    let normal = magnitude.wrapping_sub(SHIFT).wrapping_add((1 << (MORE - 1)) - 1 + is_odd) >> MORE;
    let small = (f32::from_bits(magnitude) + f32::from_bits(ONE_HALF)).to_bits().wrapping_sub(ONE_HALF);
    let not_finite = if magnitude > INFINITE { 0x7e00 | magnitude >> MORE & 0x3ff } else { 0x7c00 };
    let found = if magnitude < MIN_NORMAL { small } else { normal };
    f16::from_bits((sign | if magnitude >= TOO_LARGE { not_finite } else { found }) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every f16 as f32, and between each and the next one the midpoint and its neighbours.
    fn tried() -> impl Iterator<Item = f32> {
        let places = (0..=u16::MAX).flat_map(|bits| {
            let [here, next] = [bits, bits.wrapping_add(1)].map(|bits| f16::from_bits(bits).to_f32());
            [here, (here + next) / 2.0]
        });
        places.flat_map(|at| [-1, 0, 1].map(|by| f32::from_bits(at.to_bits().wrapping_add_signed(by))))
    }

    /// A sample of all f32.
    fn others() -> impl Iterator<Item = f32> {
        (0..=u32::MAX).step_by(4099).map(f32::from_bits)
    }

    #[test]
    fn halves_widen_as_the_library_widens_them() {
        for bits in 0..=u16::MAX {
            let found = f16_to_f32(f16::from_bits(bits)).to_bits();
            assert_eq!(found, f16::from_bits(bits).to_f32().to_bits(), "{bits:#06x}");
            let (found, expected) = (bf16_to_f32(bf16::from_bits(bits)), bf16::from_bits(bits).to_f32());
            assert!(found == expected || (found.is_nan() && expected.is_nan()), "{bits:#06x}");
        }
    }

    #[test]
    fn numbers_round_as_the_library_rounds_them() {
        for x in tried().chain(others()) {
            let (found, expected) = (f16_from_f32(x), f16::from_f32(x));
            assert_eq!(found.to_bits(), expected.to_bits(), "{x:e}, {:#010x}", x.to_bits());
            let (found, expected) = (bf16_from_f32(x), bf16::from_f32(x));
            assert_eq!(found.to_bits(), expected.to_bits(), "{x:e}, {:#010x}", x.to_bits());
        }
    }
}
