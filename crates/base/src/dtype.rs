//! Element types and their names.

use std::fmt;

/// An element type. `Bool` takes one byte, 0 or 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum DType {
    /// Boolean, one byte.
    Bool,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// IEEE half precision.
    F16,
    /// The upper half of a single: 8 exponent bits, 7 mantissa bits.
    BF16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// A type that only the interpreter computes with: no device has it.
    Inert(InertType),
}

macro_rules! inert {
    ($($variant:ident $name:literal $bytes:literal $about:literal),* $(,)?) => {
        /// An element type that the interpreter evaluates, and that lowering rejects.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum InertType { $(#[doc = $about] $variant),* }

        impl InertType {
            /// Every one, in declaration order.
            pub const ALL: &'static [InertType] = &[$(InertType::$variant),*];

            /// The spelling of StableHLO.
            pub fn name(self) -> &'static str {
                match self { $(InertType::$variant => $name),* }
            }

            /// Bytes of one element; types smaller than a byte take a whole one.
            pub fn size_bytes(self) -> usize {
                match self { $(InertType::$variant => $bytes),* }
            }
        }
    };
}
inert! {
    Complex64 "complex<f32>" 8 "Two singles, real and imaginary part.",
    Complex128 "complex<f64>" 16 "Two doubles, real and imaginary part.",
    F8E3M4 "f8E3M4" 1 "A float of 8 bits, 3 of them exponent.",
    F8E4M3 "f8E4M3" 1 "A float of 8 bits, 4 of them exponent, with infinities.",
    F8E4M3FN "f8E4M3FN" 1 "A float of 8 bits, 4 of them exponent, without infinities.",
    F8E4M3FNUZ "f8E4M3FNUZ" 1 "As f8E4M3FN, with one zero and another bias.",
    F8E4M3B11FNUZ "f8E4M3B11FNUZ" 1 "As f8E4M3FNUZ, with a bias of 11.",
    F8E5M2 "f8E5M2" 1 "The upper half of a half: 5 exponent bits.",
    F8E5M2FNUZ "f8E5M2FNUZ" 1 "As f8E5M2, with one zero, no infinities and another bias.",
    F8E8M0FNU "f8E8M0FNU" 1 "A power of two of 8 bits: the scales of block formats.",
    F6E2M3FN "f6E2M3FN" 1 "A float of 6 bits, 2 of them exponent.",
    F6E3M2FN "f6E3M2FN" 1 "A float of 6 bits, 3 of them exponent.",
    F4E2M1FN "f4E2M1FN" 1 "A float of 4 bits, 2 of them exponent.",
    I2 "i2" 1 "Signed 2-bit integer.",
    I4 "i4" 1 "Signed 4-bit integer.",
    U2 "ui2" 1 "Unsigned 2-bit integer.",
    U4 "ui4" 1 "Unsigned 4-bit integer.",
}

impl DType {
    /// Every element type that devices compute with, in declaration order.
    pub const ALL: [DType; 13] = [
        DType::Bool,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            DType::Bool | DType::I8 | DType::U8 => 1,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 => 8,
            DType::Inert(inert) => inert.size_bytes(),
        }
    }

    /// The spelling used in configs, messages and checkpoints: `f32`, `i64`, `bool`.
    pub fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::Inert(inert) => inert.name(),
        }
    }

    /// The spelling of StableHLO: `i1` for booleans, `ui32` for unsigned integers, otherwise [`DType::name`].
    pub fn mlir_name(self) -> &'static str {
        match self {
            DType::Bool => "i1",
            DType::U8 => "ui8",
            DType::U16 => "ui16",
            DType::U32 => "ui32",
            DType::U64 => "ui64",
            other => other.name(),
        }
    }

    /// The type with this [`DType::name`].
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// The type with this [`DType::mlir_name`], inert ones included.
    pub fn from_mlir_name(name: &str) -> Option<DType> {
        let inert = InertType::ALL.iter().map(|&inert| DType::Inert(inert));
        DType::ALL.into_iter().chain(inert).find(|d| d.mlir_name() == name)
    }

    /// Whether only the interpreter computes with this type.
    pub fn is_inert(self) -> bool {
        matches!(self, DType::Inert(_))
    }

    /// The bits of one element that count: one for booleans.
    pub fn bits(self) -> usize {
        match self {
            DType::Bool => 1,
            DType::Inert(InertType::I2 | InertType::U2) => 2,
            DType::Inert(InertType::I4 | InertType::U4 | InertType::F4E2M1FN) => 4,
            DType::Inert(InertType::F6E2M3FN | InertType::F6E3M2FN) => 6,
            _ => 8 * self.size_bytes(),
        }
    }

    /// Whether elements are pairs of a real and an imaginary part.
    pub fn is_complex(self) -> bool {
        matches!(self, DType::Inert(InertType::Complex64 | InertType::Complex128))
    }

    /// f16, bf16, f32, f64, or a float of fewer bits.
    pub fn is_float(self) -> bool {
        match self {
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => true,
            DType::Inert(_) => !self.is_complex() && !self.is_integer(),
            _ => false,
        }
    }

    /// A signed or unsigned integer; not `Bool`.
    pub fn is_integer(self) -> bool {
        self.is_signed_integer() || self.is_unsigned_integer()
    }

    /// i2 to i64.
    pub fn is_signed_integer(self) -> bool {
        let is_small = matches!(self, DType::Inert(InertType::I2 | InertType::I4));
        is_small || matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// u2 to u64.
    pub fn is_unsigned_integer(self) -> bool {
        let is_small = matches!(self, DType::Inert(InertType::U2 | InertType::U4));
        is_small || matches!(self, DType::U8 | DType::U16 | DType::U32 | DType::U64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_by_its_name_and_inert_ones_only_in_programs() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
            assert_eq!(DType::from_mlir_name(dtype.mlir_name()), Some(dtype));
            assert!(!dtype.is_inert());
        }
        for &inert in InertType::ALL {
            let dtype = DType::Inert(inert);
            assert_eq!(DType::from_mlir_name(inert.name()), Some(dtype));
            assert_eq!(DType::from_name(inert.name()), None, "no config asks for {inert:?}");
            let kinds = [dtype.is_float(), dtype.is_integer(), dtype.is_complex()];
            assert_eq!(kinds.into_iter().filter(|&is| is).count(), 1, "{inert:?} is of one kind");
            assert!(dtype.is_inert() && (1..=8 * dtype.size_bytes()).contains(&dtype.bits()));
        }
    }
}
