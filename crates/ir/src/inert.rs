//! Numbers of the types that only the interpreter computes with: complex numbers, floats of 8 bits
//! and fewer, integers of 2 and 4 bits. In memory each is one f64 or two, which hold them exactly;
//! their bits and text are made here.
//!
//! A small float is defined by the value of each of its codes, and rounding picks the nearest code
//! (ties to an even one). The suffixes say what is special: `FN` has no infinities and one NaN,
//! `UZ` has no negative zero, whose code is the NaN, and the floats of 6 and 4 bits have neither
//! infinities nor NaN, so that overflow saturates (OCP 8-bit and microscaling formats).

use crate::text::{Float, float_text, parse_integer, print_decimal};
use partita_base::{DType, InertType};

/// What the codes of the largest exponent are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    /// Infinities and NaN, as in IEEE 754.
    Ieee,
    /// Numbers, but the very last code is NaN.
    LastIsNan,
    /// Numbers; the code of negative zero is NaN.
    NegativeZeroIsNan,
    /// Numbers; there is no NaN.
    None,
    /// Powers of two without sign; the last code is NaN.
    Scale,
}

/// A float format: exponent bits, mantissa bits, bias.
#[derive(Clone, Copy)]
struct Format {
    exponent: u32,
    mantissa: u32,
    bias: i32,
    special: Special,
}

fn format(inert: InertType) -> Option<Format> {
    let of = |exponent, mantissa, bias, special| Some(Format { exponent, mantissa, bias, special });
    match inert {
        InertType::F8E3M4 => of(3, 4, 3, Special::Ieee),
        InertType::F8E4M3 => of(4, 3, 7, Special::Ieee),
        InertType::F8E4M3FN => of(4, 3, 7, Special::LastIsNan),
        InertType::F8E4M3FNUZ => of(4, 3, 8, Special::NegativeZeroIsNan),
        InertType::F8E4M3B11FNUZ => of(4, 3, 11, Special::NegativeZeroIsNan),
        InertType::F8E5M2 => of(5, 2, 15, Special::Ieee),
        InertType::F8E5M2FNUZ => of(5, 2, 16, Special::NegativeZeroIsNan),
        InertType::F8E8M0FNU => of(8, 0, 127, Special::Scale),
        InertType::F6E2M3FN => of(2, 3, 1, Special::None),
        InertType::F6E3M2FN => of(3, 2, 3, Special::None),
        InertType::F4E2M1FN => of(2, 1, 1, Special::None),
        InertType::Complex64
        | InertType::Complex128
        | InertType::I2
        | InertType::I4
        | InertType::U2
        | InertType::U4 => None,
    }
}

impl Format {
    /// The number of a code without sign, specials aside.
    fn magnitude(self, code: u32) -> f64 {
        if self.special == Special::Scale {
            return 2f64.powi(code as i32 - self.bias);
        }
        let (exponent, fraction) = (code >> self.mantissa, code & ((1 << self.mantissa) - 1));
        let unit = 2f64.powi(exponent.max(1) as i32 - self.bias - self.mantissa as i32);
        unit * f64::from(if exponent == 0 { fraction } else { fraction + (1 << self.mantissa) })
    }

    /// The code of the sign.
    fn sign(self) -> u32 {
        1 << (self.exponent + self.mantissa)
    }

    /// The code of the largest number.
    fn largest(self) -> u32 {
        match self.special {
            Special::Ieee => (((1 << self.exponent) - 1) << self.mantissa) - 1,
            Special::LastIsNan | Special::Scale => self.sign() - 2,
            Special::NegativeZeroIsNan | Special::None => self.sign() - 1,
        }
    }

    fn nan(self) -> u32 {
        match self.special {
            Special::Ieee => self.largest() + 1 + (1 << (self.mantissa - 1)),
            Special::LastIsNan | Special::Scale => self.sign() - 1,
            Special::NegativeZeroIsNan => self.sign(),
            Special::None => 0,
        }
    }

    fn decode(self, code: u32) -> f64 {
        let (sign, rest) = (code & self.sign(), code & (self.sign() - 1));
        let is_nan_zero = self.special == Special::NegativeZeroIsNan && code == self.sign();
        let magnitude = match rest.cmp(&self.largest()) {
            _ if is_nan_zero => f64::NAN,
            std::cmp::Ordering::Greater if self.special == Special::Ieee && rest == self.largest() + 1 => {
                f64::INFINITY
            }
            std::cmp::Ordering::Greater => f64::NAN,
            _ => self.magnitude(rest),
        };
        if sign != 0 && self.special != Special::Scale { -magnitude } else { magnitude }
    }

    /// The code nearest to a number, given the magnitudes of all codes up to one above the largest.
    fn encode(self, value: f64, magnitudes: &[f64]) -> u32 {
        let magnitude = value.abs();
        if value.is_nan() || (self.special == Special::Scale && value < 0.0) {
            return self.nan();
        }
        let above = magnitudes.partition_point(|&m| m <= magnitude) as u32;
        let code = match above {
            0 => 0,
            _ if above > self.largest() + 1 => above,
            _ => {
                let (low, high) = (magnitudes[above as usize - 1], magnitudes[above as usize]);
                let middle = low + (high - low) / 2.0;
                above - u32::from(magnitude < middle || (magnitude == middle && above % 2 == 1))
            }
        };
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        match code > self.largest() {
            true => match self.special {
                Special::Ieee => sign | (self.largest() + 1),
                Special::None => sign | self.largest(),
                Special::LastIsNan => sign | self.nan(),
                Special::NegativeZeroIsNan | Special::Scale => self.nan(),
            },
            false if code == 0 && self.special == Special::NegativeZeroIsNan => 0,
            false if self.special == Special::Scale => code,
            false => sign | code,
        }
    }

    fn magnitudes(self) -> Vec<f64> {
        (0..=self.largest() + 1).map(|code| self.magnitude(code)).collect()
    }
}

/// Rounds an f64 to a number of the type; integers saturate.
pub(crate) fn rounding(inert: InertType) -> Box<dyn Fn(f64) -> f64> {
    if let Some(format) = format(inert) {
        let magnitudes = format.magnitudes();
        return Box::new(move |value| format.decode(format.encode(value, &magnitudes)));
    }
    let range = |low: i8, high: i8| -> Box<dyn Fn(f64) -> f64> {
        Box::new(move |value: f64| {
            let truncated = if value.is_nan() { 0.0 } else { value.trunc() };
            truncated.clamp(low.into(), high.into()) + 0.0
        })
    };
    match inert {
        InertType::Complex64 => Box::new(|value| f64::from(value as f32)),
        InertType::I2 => range(-2, 1),
        InertType::I4 => range(-8, 7),
        InertType::U2 => range(0, 3),
        InertType::U4 => range(0, 15),
        _ => Box::new(|value| value),
    }
}

/// Wraps an integer to an integer type; other types take it as it is.
pub(crate) fn wrapped(inert: InertType, value: i128) -> i128 {
    let dtype = DType::Inert(inert);
    if !dtype.is_integer() {
        return value;
    }
    let bits = dtype.bits();
    let low = value & ((1 << bits) - 1);
    if dtype.is_signed_integer() && low >> (bits - 1) == 1 { low - (1 << bits) } else { low }
}

/// Little-endian bytes. A number of fewer than 8 bits is the low bits of a byte.
pub(crate) fn to_bytes(inert: InertType, [re, im]: [f64; 2]) -> Vec<u8> {
    match (inert, format(inert)) {
        (_, Some(format)) => vec![format.encode(re, &format.magnitudes()) as u8],
        (InertType::Complex64, _) => [re as f32, im as f32].map(f32::to_le_bytes).concat(),
        (InertType::Complex128, _) => [re, im].map(f64::to_le_bytes).concat(),
        _ => vec![re as i8 as u8 & ((1 << DType::Inert(inert).bits()) - 1)],
    }
}

/// The inverse of [`to_bytes`], for as many bytes as the type has.
pub(crate) fn from_bytes(inert: InertType, bytes: &[u8]) -> [f64; 2] {
    let part = |at: usize| bytes[at..].iter().take(bytes.len() / 2).copied();
    let bits = |at: usize| part(at).rev().fold(0u64, |bits, byte| bits << 8 | u64::from(byte));
    match (inert, format(inert)) {
        (_, Some(format)) => [format.decode(bytes[0].into()), 0.0],
        (InertType::Complex64, _) => [bits(0), bits(4)].map(|bits| f32::from_bits(bits as u32).into()),
        (InertType::Complex128, _) => [bits(0), bits(8)].map(f64::from_bits),
        _ => [wrapped(inert, bytes[0].into()) as f64, 0.0],
    }
}

/// A number, or a part of one, as literals write it: decimal, or its bits after `0x`. `None` if it
/// is none of the type.
pub(crate) fn parse(inert: InertType, text: &str) -> Option<f64> {
    let dtype = DType::Inert(inert);
    if dtype.is_integer() {
        let value = parse_integer(text)?;
        return (wrapped(inert, value) == value).then_some(value as f64);
    }
    match (float_text(text)?, format(inert)) {
        (Float::Bits(bits), Some(format)) => Some(format.decode(u8::try_from(bits).ok()?.into())),
        (Float::Bits(bits), None) if inert == InertType::Complex64 => {
            Some(f32::from_bits(u32::try_from(bits).ok()?).into())
        }
        (Float::Bits(bits), None) => Some(f64::from_bits(bits)),
        (Float::Decimal(text), _) => text.parse().ok(),
    }
}

/// The text of an element.
pub(crate) fn print(inert: InertType, [re, im]: [f64; 2]) -> String {
    let part = |value: f64| match (inert, value.is_finite()) {
        (InertType::Complex64, true) => print_decimal(format!("{:e}", value as f32)),
        (InertType::Complex64, false) => format!("0x{:08X}", (value as f32).to_bits()),
        (_, true) => print_decimal(format!("{value:e}")),
        (_, false) => format!("0x{:016X}", value.to_bits()),
    };
    match DType::Inert(inert) {
        dtype if dtype.is_complex() => format!("({}, {})", part(re), part(im)),
        dtype if dtype.is_integer() => format!("{}", re as i64),
        _ if re.is_finite() => part(re),
        _ => format!("0x{:02X}", to_bytes(inert, [re, im])[0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats() -> impl Iterator<Item = (InertType, Format)> {
        InertType::ALL.iter().filter_map(|&inert| Some((inert, format(inert)?)))
    }

    #[test]
    fn every_code_is_read_back_from_its_number_and_text() {
        for (inert, format) in floats() {
            let round = rounding(inert);
            let bits = DType::Inert(inert).bits();
            for code in 0..1u32 << bits {
                let value = from_bytes(inert, &[code as u8]);
                let back = to_bytes(inert, value)[0];
                if value[0].is_nan() {
                    assert!(from_bytes(inert, &[back])[0].is_nan());
                    assert!(parse(inert, &print(inert, value)).unwrap().is_nan());
                    continue;
                }
                assert_eq!(u32::from(back), code, "{inert:?}: {value:?}");
                assert_eq!(round(value[0]), value[0]);
                assert_eq!(parse(inert, &print(inert, value)).unwrap(), value[0], "{inert:?}");
            }
            // Numbers grow with their codes.
            assert!(format.magnitudes().windows(2).all(|pair| pair[0] < pair[1]), "{inert:?}");
        }
    }

    #[test]
    fn the_formats_have_their_published_limits() {
        // The largest number, the smallest positive one, and what is beyond the largest.
        let rows = [
            (InertType::F8E5M2, 57344.0, 2f64.powi(-16), f64::INFINITY),
            (InertType::F8E4M3, 240.0, 2f64.powi(-9), f64::INFINITY),
            (InertType::F8E4M3FN, 448.0, 2f64.powi(-9), f64::NAN),
            (InertType::F8E4M3FNUZ, 240.0, 2f64.powi(-10), f64::NAN),
            (InertType::F8E4M3B11FNUZ, 30.0, 2f64.powi(-13), f64::NAN),
            (InertType::F8E5M2FNUZ, 57344.0, 2f64.powi(-17), f64::NAN),
            (InertType::F8E3M4, 15.5, 2f64.powi(-6), f64::INFINITY),
            (InertType::F8E8M0FNU, 2f64.powi(127), 2f64.powi(-127), f64::NAN),
            (InertType::F6E2M3FN, 7.5, 0.125, 7.5),
            (InertType::F6E3M2FN, 28.0, 0.0625, 28.0),
            (InertType::F4E2M1FN, 6.0, 0.5, 6.0),
        ];
        for (inert, largest, smallest, beyond) in rows {
            let round = rounding(inert);
            let format = format(inert).unwrap();
            assert_eq!(format.magnitude(format.largest()), largest, "{inert:?}");
            assert_eq!(round(smallest), smallest, "{inert:?}");
            assert_eq!(round(1e300).to_bits() << 1, beyond.to_bits() << 1, "{inert:?}");
            assert_eq!(round(1e-300), if inert == InertType::F8E8M0FNU { smallest } else { 0.0 });
        }
        assert_eq!(floats().count(), rows.len());
    }

    #[test]
    fn rounding_is_to_the_nearest_and_to_even_codes_in_between() {
        let round = rounding(InertType::F8E4M3FN);
        assert_eq!(
            [1.0625, 1.1875, 1.07, 463.9, 464.0, 464.1].map(&round)[..5],
            [1.0, 1.25, 1.125, 448.0, 448.0]
        );
        assert!(round(464.1).is_nan() && round(f64::INFINITY).is_nan());
        assert!(round(-0.0).is_sign_negative() && rounding(InertType::F8E5M2FNUZ)(-0.0).is_sign_positive());
    }

    #[test]
    fn small_integers_wrap_or_saturate() {
        assert_eq!([-9, -8, 7, 8, 300].map(|v| wrapped(InertType::I4, v)), [7, -8, 7, -8, -4]);
        assert_eq!([-1, 3, 4].map(|v| wrapped(InertType::U2, v)), [3, 3, 0]);
        let round = rounding(InertType::I4);
        assert_eq!([-9.0, 7.9, 100.0, f64::NAN].map(&round), [-8.0, 7.0, 7.0, 0.0]);
        for inert in [InertType::I2, InertType::I4, InertType::U2, InertType::U4] {
            for code in 0..1u8 << DType::Inert(inert).bits() {
                let value = from_bytes(inert, &[code]);
                assert_eq!(to_bytes(inert, value), [code]);
                assert_eq!(parse(inert, &print(inert, value)), Some(value[0]));
            }
        }
        assert_eq!(parse(InertType::U4, "16"), None);
    }

    #[test]
    fn complex_numbers_keep_both_parts() {
        for inert in [InertType::Complex64, InertType::Complex128] {
            let value = [1.5, f64::NEG_INFINITY];
            assert_eq!(from_bytes(inert, &to_bytes(inert, value)), value);
        }
        assert_eq!(print(InertType::Complex64, [0.1f32.into(), -0.0]), "(1.000000e-01, -0.000000e+00)");
    }
}
