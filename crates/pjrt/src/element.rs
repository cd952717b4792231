//! The numbers of element types: in the C header of PJRT, and in the messages of XLA.

use partita_base::{DType, InertType};

/// The number of an element type in the header (`PJRT_Buffer_Type`) and in messages (`PrimitiveType`).
fn numbers(dtype: DType) -> (i32, u64) {
    match dtype {
        DType::Bool => (1, 1),
        DType::I8 => (2, 2),
        DType::I16 => (3, 3),
        DType::I32 => (4, 4),
        DType::I64 => (5, 5),
        DType::U8 => (6, 6),
        DType::U16 => (7, 7),
        DType::U32 => (8, 8),
        DType::U64 => (9, 9),
        DType::F16 => (10, 10),
        DType::F32 => (11, 11),
        DType::F64 => (12, 12),
        DType::BF16 => (13, 16),
        DType::Inert(InertType::Complex64) => (14, 15),
        DType::Inert(InertType::Complex128) => (15, 18),
        DType::Inert(InertType::F8E5M2) => (16, 19),
        DType::Inert(InertType::F8E4M3FN) => (17, 20),
        DType::Inert(InertType::F8E4M3B11FNUZ) => (18, 23),
        DType::Inert(InertType::F8E5M2FNUZ) => (19, 24),
        DType::Inert(InertType::F8E4M3FNUZ) => (20, 25),
        DType::Inert(InertType::I4) => (21, 21),
        DType::Inert(InertType::U4) => (22, 22),
        DType::Inert(InertType::I2) => (24, 26),
        DType::Inert(InertType::U2) => (25, 27),
        DType::Inert(InertType::F8E4M3) => (26, 28),
        DType::Inert(InertType::F8E3M4) => (27, 29),
        DType::Inert(InertType::F8E8M0FNU) => (28, 33),
        DType::Inert(InertType::F4E2M1FN) => (29, 32),
        DType::Inert(InertType::F6E2M3FN) => (32, 36),
        DType::Inert(InertType::F6E3M2FN) => (33, 35),
    }
}

/// Every element type.
fn all() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().chain(InertType::ALL.iter().map(|&inert| DType::Inert(inert)))
}

/// The number of an element type in the header.
pub(crate) fn number(dtype: DType) -> i32 {
    numbers(dtype).0
}

/// The element type with this number in the header.
pub(crate) fn element(number: i32) -> Option<DType> {
    all().find(|dtype| numbers(*dtype).0 == number)
}

/// The element type with this number in messages.
pub(crate) fn element_of_message(number: u64) -> Option<DType> {
    all().find(|dtype| numbers(*dtype).1 == number)
}
