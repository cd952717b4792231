//! The types of a program's parameters, from the compiled program as XLA shows it (`HloModuleProto`).
//!
//! The C interface states the types of results, not those of parameters, and XLA compares only sizes in bytes: a buffer
//! of integers would be read as floats. It does not compare layouts either, so a column-major parameter would get its
//! elements in another order. So both are read here, of saved programs too.

use crate::element::element_of_message;
use partita_base::DType;

/// A field of a message.
enum Field<'a> {
    Integer(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message in their order, with their numbers; `None` ends a damaged one.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for place in 0..10 {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 127).checked_shl(7 * place)?;
            if byte & 128 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }

    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Integer(self.varint()?),
            1 => Field::Bytes(self.take(8)?),
            2 => {
                let length = self.varint()?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Bytes(self.take(4)?),
            _ => return None,
        };
        Some((key >> 3, field))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Field<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() { None } else { self.field() }
    }
}

/// The messages in the field `number`.
fn messages(message: &[u8], number: u64) -> impl Iterator<Item = &[u8]> {
    Fields(message).filter_map(move |(at, field)| match field {
        Field::Bytes(bytes) if at == number => Some(bytes),
        _ => None,
    })
}

/// The integer in the field `number`; 0 is not written.
fn integer(message: &[u8], number: u64) -> u64 {
    let found = Fields(message).find_map(|(at, field)| match field {
        Field::Integer(value) if at == number => Some(value),
        _ => None,
    });
    found.unwrap_or(0)
}

/// The integers in the field `number` of a message, packed into one field or not; `None` if it is damaged.
fn integers(message: &[u8], number: u64) -> Option<Vec<u64>> {
    let mut found = Vec::new();
    for (at, field) in Fields(message) {
        match field {
            Field::Integer(value) if at == number => found.push(value),
            Field::Bytes(bytes) if at == number => {
                let mut packed = Fields(bytes);
                while !packed.0.is_empty() {
                    found.push(packed.varint()?);
                }
            }
            _ => {}
        }
    }
    Some(found)
}

/// Element type and extents of a `ShapeProto`; `None` for a tuple or a token.
fn tensor(shape: &[u8]) -> Option<(DType, Vec<usize>)> {
    let dtype = element_of_message(integer(shape, 2))?;
    let extents = integers(shape, 3)?.into_iter().map(|extent| usize::try_from(extent).ok());
    Some((dtype, extents.collect::<Option<_>>()?))
}

/// Whether a `ShapeProto` is dense and row-major, and all parts of a tuple are.
fn is_row_major(shape: &[u8]) -> bool {
    let orders = messages(shape, 5).map(|layout| integers(layout, 1).unwrap_or_default());
    let mut orders = orders.filter(|order| !order.is_empty());
    orders.all(|order| order.iter().rev().copied().eq(0..order.len() as u64))
        && messages(shape, 4).all(is_row_major)
}

/// The module in a program that a plugin shows: the format `hlo` is a module, `hlo_with_config` has one in its first field.
fn module<'a>(format: &[u8], program: &'a [u8]) -> Option<&'a [u8]> {
    match format {
        b"hlo" => Some(program),
        b"hlo_with_config" => messages(program, 1).next(),
        _ => None,
    }
}

/// Element type and extents of each parameter on one device. `None` if they cannot be read.
pub(crate) fn parameters(format: &[u8], program: &[u8]) -> Option<Vec<(DType, Vec<usize>)>> {
    let module = module(format, program)?;
    // The entry computation by its id, and its program_shape with the shapes of parameters.
    let entry = integer(module, 6);
    let computation = messages(module, 3).find(|computation| integer(computation, 5) == entry)?;
    messages(messages(computation, 4).next()?, 1).map(tensor).collect()
}

/// Whether parameters and results are dense and row-major, as far as the program says.
pub(crate) fn has_plain_layouts(format: &[u8], program: &[u8]) -> bool {
    // host_program_shape, which has the layouts: its parameters, and its result.
    let shapes = module(format, program).and_then(|module| messages(module, 4).next());
    shapes.is_none_or(|shapes| messages(shapes, 1).chain(messages(shapes, 2)).all(is_row_major))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module of two computations; that with id 2 takes `f32[300,2]` and `s32[]`.
    const MODULE: &[u8] = &[
        0x0a, 1, b'm', // name
        0x1a, 2, 0x28, 1, // computation 1
        0x1a, 19, 0x22, 15, // computation 2: its shape
        0x0a, 7, 0x10, 11, 0x1a, 3, 0xac, 0x02, 2, // f32[300,2]
        0x0a, 2, 0x10, 4, // s32[]
        0x12, 0, // the result
        0x28, 2, // its id
        0x30, 2, // the entry
    ];

    #[test]
    fn parameters_of_the_entry_are_found() {
        let right = vec![(DType::F32, vec![300, 2]), (DType::I32, vec![])];
        assert_eq!(parameters(b"hlo", MODULE), Some(right.clone()));
        let mut with_config = vec![0x0a, MODULE.len() as u8];
        with_config.extend(MODULE);
        assert_eq!(parameters(b"hlo_with_config", &with_config), Some(right));
        assert_eq!(parameters(b"mlir", MODULE), None);
    }

    #[test]
    fn layouts_other_than_row_major_are_found() {
        // A module whose parameter is a tensor with this order of dimensions, the fastest first.
        let with = |order: &[u8]| {
            let layout = [&[0x0a, order.len() as u8], order].concat();
            let shape = [&[0x10, 11, 0x2a, layout.len() as u8], &layout[..]].concat();
            let tuple = [&[0x10, 13, 0x22, shape.len() as u8], &shape[..]].concat();
            [&[0x22, tuple.len() as u8 + 2, 0x12, tuple.len() as u8], &tuple[..]].concat()
        };
        for (order, right) in
            [(&[][..], true), (&[0], true), (&[2, 1, 0], true), (&[0, 1], false), (&[2, 0, 1], false)]
        {
            assert_eq!(has_plain_layouts(b"hlo", &with(order)), right, "{order:?}");
        }
        assert!(has_plain_layouts(b"hlo", MODULE) && has_plain_layouts(b"mlir", &with(&[0, 1])));
    }

    #[test]
    fn damaged_modules_end_early() {
        for end in 0..MODULE.len() {
            parameters(b"hlo", &MODULE[..end]);
        }
        for at in 0..MODULE.len() {
            for byte in 0..=255 {
                let mut damaged = MODULE.to_vec();
                damaged[at] = byte;
                parameters(b"hlo", &damaged);
                has_plain_layouts(b"hlo", &damaged);
            }
        }
        assert_eq!(Fields(&[0xff; 12]).varint(), None);
    }
}
