//! Runs instructions without a kernel on the reference interpreter.

use partita_base::Result;
use partita_ir::{Graph, Literal, TensorType, evaluate};

use super::Kernel;
use crate::arena::{Memory, Place, Span};

/// The elements of a place, row-major. Copied one by one if they are not dense; any rank.
fn read(memory: &Memory<'_>, place: &Place) -> Vec<u8> {
    let size = place.dtype.size_bytes();
    if place.is_dense() {
        let bytes = place.element_count() * size;
        return memory.bytes(Span { offset: place.offset_bytes, bytes }).to_vec();
    }
    let mut result = Vec::with_capacity(place.element_count() * size);
    for index in partita_ir::literal::indices(&place.shape) {
        let offset: isize = index.iter().zip(&place.strides).map(|(&i, s)| i as isize * s).sum();
        let offset = place.offset_bytes.checked_add_signed(offset * size as isize);
        let offset = offset.expect("an element lies in its arena");
        result.extend_from_slice(memory.bytes(Span { offset, bytes: size }));
    }
    result
}

pub(super) fn compile(graph: Graph, inputs: Vec<Place>, outputs: Vec<Place>) -> Kernel {
    let run = move |memory: &Memory<'_>, _: Span| -> Result<()> {
        let literal = |place: &Place| {
            let ty = TensorType::new(place.dtype, place.shape.clone());
            Literal::from_bytes(&ty, &read(memory, place)).expect("as many bytes as the type has")
        };
        let results = evaluate(&graph, &inputs.iter().map(literal).collect::<Vec<_>>())?;
        for (result, place) in results.iter().zip(&outputs) {
            let bytes = result.to_bytes();
            memory.bytes_mut(Span { offset: place.offset_bytes, bytes: bytes.len() }).copy_from_slice(&bytes);
        }
        Ok(())
    };
    Kernel { is_slow: true, ..Kernel::new(0, run) }
}
