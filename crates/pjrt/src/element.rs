//! The numbers of element types in the C header.

use partita_base::{DType, InertType};

/// Every element type with its number. Types that are missing here have none.
const NUMBERS: [(DType, i32); 28] = [
    (DType::Bool, 1),
    (DType::I8, 2),
    (DType::I16, 3),
    (DType::I32, 4),
    (DType::I64, 5),
    (DType::U8, 6),
    (DType::U16, 7),
    (DType::U32, 8),
    (DType::U64, 9),
    (DType::F16, 10),
    (DType::F32, 11),
    (DType::F64, 12),
    (DType::BF16, 13),
    (DType::Inert(InertType::Complex64), 14),
    (DType::Inert(InertType::Complex128), 15),
    (DType::Inert(InertType::F8E5M2), 16),
    (DType::Inert(InertType::F8E4M3FN), 17),
    (DType::Inert(InertType::F8E4M3B11FNUZ), 18),
    (DType::Inert(InertType::F8E5M2FNUZ), 19),
    (DType::Inert(InertType::F8E4M3FNUZ), 20),
    (DType::Inert(InertType::I4), 21),
    (DType::Inert(InertType::U4), 22),
    (DType::Inert(InertType::I2), 24),
    (DType::Inert(InertType::U2), 25),
    (DType::Inert(InertType::F8E4M3), 26),
    (DType::Inert(InertType::F8E3M4), 27),
    (DType::Inert(InertType::F8E8M0FNU), 28),
    (DType::Inert(InertType::F4E2M1FN), 29),
];

/// The number of an element type.
pub(crate) fn number(dtype: DType) -> Option<i32> {
    NUMBERS.iter().find(|(other, _)| *other == dtype).map(|(_, number)| *number)
}

/// The element type with this number.
pub(crate) fn element(number: i32) -> Option<DType> {
    NUMBERS.iter().find(|(_, other)| *other == number).map(|(dtype, _)| *dtype)
}
