//! A tensor in a file: a strided view of bytes that are read only when they are used.

use crate::limits::exceeded;
use crate::{Limits, Source, strided};
use partita_base::{DType, Diagnostic, Result};
use partita_ir::{Literal, TensorType};
use partita_nn::Values;
use std::fmt;
use std::ops::Range;

/// A tensor whose elements are in a file or in memory, little-endian. Reads fail if the file has changed: E350, or the code
/// of the kind of its [`Source`].
#[derive(Clone)]
pub struct Tensor {
    /// Element type and shape.
    pub ty: TensorType,
    /// The distance of neighbours along each dimension, in elements.
    strides: Vec<usize>,
    /// The bytes from the first to the last element; empty for a tensor whose elements the file
    /// does not have: they are 0.
    place: Range<usize>,
    source: Source,
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:?} with strides {:?}", self.ty, self.place, self.strides)
    }
}

impl Tensor {
    /// A tensor of the bytes `place`, whose first element is `offset` elements into it. A `place`
    /// of no bytes is a tensor without its values, as a model on the meta device has: zeros.
    ///
    /// # Errors
    /// E354 if it does not fit into its bytes, E358 if strides repeat elements beyond
    /// [`Limits::expanded_bytes`].
    pub fn new(
        name: &str,
        ty: TensorType,
        strides: &[usize],
        offset: usize,
        source: Source,
        place: Range<usize>,
        limits: &Limits,
    ) -> Result<Tensor> {
        let wrong = |expected: String, found: String| {
            Diagnostic::new("E354", format!("the values of `{name}` do not fit its type"))
                .at(name)
                .expected(expected)
                .found(found)
                .help("the file is damaged: save it again, or copy it again")
        };
        if strides.len() != ty.rank() {
            return Err(wrong(format!("{} strides for {ty}", ty.rank()), format!("{strides:?}")));
        }
        let count = limits.count(&ty.shape, &format!("`{name}`"))?;
        if place.is_empty() || count == 0 {
            let place = place.start..place.start;
            return Ok(Tensor { ty, strides: strides.to_vec(), place, source });
        }
        let size = ty.dtype.size_bytes();
        let last = ty.shape.iter().zip(strides).try_fold(0usize, |last, (&extent, &stride)| {
            (extent - 1).checked_mul(stride).and_then(|step| last.checked_add(step))
        });
        let first_byte = offset.checked_mul(size).and_then(|first| first.checked_add(place.start));
        let end = last
            .and_then(|last| last.checked_add(offset))
            .and_then(|last| last.checked_add(1)?.checked_mul(size)?.checked_add(place.start));
        let found = place.end <= source.len() && end.is_some_and(|end| end <= place.end);
        let (Some(first), Some(end), true) = (first_byte, end, found) else {
            return Err(wrong(
                format!("{ty} from element {offset} with strides {strides:?}"),
                format!("{} bytes", place.len()),
            ));
        };
        if ty.bytes() > place.len() && ty.bytes() > limits.expanded_bytes {
            let limit = format!("at most {} bytes of repeated elements", limits.expanded_bytes);
            return Err(exceeded(&format!("`{name}`"), limit, format!("{ty} in {} bytes", place.len())));
        }
        Ok(Tensor { ty, strides: strides.to_vec(), place: first..end, source })
    }

    /// A tensor whose elements are all of `place`, row by row. E354 if their number differs.
    pub fn dense(
        name: &str,
        ty: TensorType,
        source: Source,
        place: Range<usize>,
        limits: &Limits,
    ) -> Result<Tensor> {
        limits.count(&ty.shape, &format!("`{name}`"))?;
        if ty.bytes() != place.len() {
            return Err(Diagnostic::new("E354", format!("the values of `{name}` do not fit its type"))
                .at(name)
                .expected(format!("{} bytes for {ty}", ty.bytes()))
                .found(format!("{} bytes", place.len()))
                .help("the file is damaged: save it again, or copy it again"));
        }
        let strides = ty.strides();
        Tensor::new(name, ty, &strides, 0, source, place, limits)
    }

    /// Whether both are the same view of the same bytes: two names of one tensor.
    pub fn is_same_view(&self, other: &Tensor) -> bool {
        (&self.ty, &self.strides, &self.place) == (&other.ty, &other.strides, &other.place)
            && self.source.is(&other.source)
            && !self.place.is_empty()
    }

    /// The place of the first byte.
    pub(crate) fn first_byte(&self) -> usize {
        self.place.start
    }

    /// Whether both share bytes.
    pub fn overlaps(&self, other: &Tensor) -> bool {
        self.source.is(&other.source)
            && self.place.start < other.place.end
            && other.place.start < self.place.end
    }

    /// Whether the file has the elements.
    pub fn has_values(&self) -> bool {
        !self.place.is_empty() || self.ty.element_count() == 0
    }

    /// The same elements with the two dimensions of a matrix exchanged, not copied.
    ///
    /// # Panics
    /// If it is not a matrix.
    pub fn transposed(&self) -> Tensor {
        assert_eq!(self.ty.rank(), 2, "a matrix");
        let mut turned = self.clone();
        turned.ty.shape.reverse();
        turned.strides.reverse();
        turned
    }

    /// The same bytes as real numbers with a last dimension of 2, if the elements are complex; else itself.
    pub fn as_pairs(&self) -> Tensor {
        let Some(ty) = self.ty.as_pairs() else { return self.clone() };
        let strides = self.strides.iter().map(|stride| 2 * stride).chain([1]).collect();
        Tensor { ty, strides, place: self.place.clone(), source: self.source.clone() }
    }

    /// `count` indices of the first dimension from `start`, not copied.
    ///
    /// # Panics
    /// If they are not within the tensor.
    pub fn rows(&self, start: usize, count: usize) -> Tensor {
        assert!(start + count <= self.ty.shape[0], "{count} rows from {start} of {}", self.ty);
        let mut part = self.clone();
        part.ty.shape[0] = count;
        let skipped = start * self.strides[0] * self.ty.dtype.size_bytes();
        part.place.start = (self.place.start + skipped).min(self.place.end);
        part
    }

    /// Whether the elements are stored row by row, without gaps.
    pub fn is_dense(&self) -> bool {
        self.ty.bytes() == self.place.len() && self.strides == self.ty.strides()[..]
    }

    /// The same elements in memory, row by row.
    ///
    /// # Errors
    /// E350 if the file has changed.
    pub fn loaded(&self) -> Result<Tensor> {
        let mut bytes = vec![0; self.ty.bytes()];
        self.read(&mut bytes)?;
        Ok(Tensor::of_bytes(self.ty.clone(), bytes))
    }

    /// The tensor of these bytes, row by row.
    fn of_bytes(ty: TensorType, bytes: Vec<u8>) -> Tensor {
        Tensor { strides: ty.strides().to_vec(), ty, place: 0..bytes.len(), source: bytes.into() }
    }

    /// Tensors joined along the first dimension, copied; `None` if their other extents or their element types differ, or if
    /// they are scalars.
    ///
    /// # Errors
    /// E350 if the file of one has changed.
    pub fn joined(parts: &[Tensor]) -> Result<Option<Tensor>> {
        let Some(first) = parts.first() else { return Ok(None) };
        let fits = |t: &Tensor| {
            t.ty.dtype == first.ty.dtype && t.ty.rank() > 0 && t.ty.shape[1..] == first.ty.shape[1..]
        };
        if !parts.iter().all(fits) {
            return Ok(None);
        }
        let mut ty = first.ty.clone();
        ty.shape[0] = parts.iter().map(|part| part.ty.shape[0]).sum();
        let mut joined = vec![0; ty.bytes()];
        let mut rest = &mut joined[..];
        for part in parts {
            let (own, others) = rest.split_at_mut(part.ty.bytes());
            part.read(own)?;
            rest = others;
        }
        Ok(Some(Tensor::of_bytes(ty, joined)))
    }

    /// All elements, copied.
    ///
    /// # Errors
    /// E350 if the file has changed.
    pub fn literal(&self) -> Result<Literal> {
        self.window(&vec![0; self.ty.rank()], &self.ty.shape)
    }

    /// The elements of the box of `extent` at `offset`, copied.
    ///
    /// # Errors
    /// E350 if the file has changed.
    ///
    /// # Panics
    /// If the box is not within the tensor.
    pub fn window(&self, offset: &[usize], extent: &[usize]) -> Result<Literal> {
        self.expect_within(offset, extent);
        let ty = self.ty.with_shape(extent);
        if self.place.is_empty() || ty.element_count() == 0 {
            return Ok(Literal::splat(&ty, 0.0));
        }
        Literal::written(&ty, |into| self.fill(offset, extent, into))
    }

    /// Fills `into` with all elements, row by row.
    ///
    /// # Errors
    /// E350 if the file has changed.
    ///
    /// # Panics
    /// If `into` has another size.
    pub fn read(&self, into: &mut [u8]) -> Result<()> {
        self.fill(&vec![0; self.ty.rank()], &self.ty.shape, into)
    }

    fn expect_within(&self, offset: &[usize], extent: &[usize]) {
        let within =
            |((&o, &e), &n): ((&usize, &usize), &usize)| o.checked_add(e).is_some_and(|end| end <= n);
        assert!(
            offset.iter().zip(extent).zip(&self.ty.shape).all(within),
            "{extent:?} at {offset:?} of {}",
            self.ty
        );
    }

    /// Fills `into` with the box of `extent` at `offset`, which is within the tensor.
    fn fill(&self, offset: &[usize], extent: &[usize], into: &mut [u8]) -> Result<()> {
        let size = self.ty.dtype.size_bytes();
        assert_eq!(into.len(), extent.iter().product::<usize>() * size, "bytes of {extent:?} of {}", self.ty);
        if self.place.is_empty() {
            into.fill(0);
            return Ok(());
        }
        let before: usize = offset.iter().zip(&self.strides).map(|(o, s)| o * s).sum();
        let first = self.place.start + before * size;
        self.source.reading(|pieces| strided::copy(pieces, (size, first), (extent, &self.strides), into))?;
        if self.ty.dtype == DType::Bool {
            into.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        Ok(())
    }
}

impl Values for Tensor {
    fn window(&self, offset: &[usize], extent: &[usize]) -> Result<Literal> {
        Tensor::window(self, offset, extent)
    }

    fn place(&self) -> Option<String> {
        let Tensor { ty, strides, place, source } = self;
        Some(format!("{} {place:?} {strides:?} {ty}", source.file()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Source {
        (0..count).flat_map(|i| (i as f32).to_le_bytes()).collect::<Vec<u8>>().into()
    }

    fn view(shape: &[usize], strides: &[usize], offset: usize, count: usize) -> Result<Tensor> {
        let ty = TensorType::new(DType::F32, shape);
        Tensor::new("w", ty, strides, offset, numbers(count), 0..count * 4, &Limits::default())
    }

    #[test]
    fn strides_and_offsets_are_honoured() {
        let transposed = view(&[3, 2], &[1, 3], 0, 6).unwrap();
        assert_eq!(transposed.literal().unwrap().to_f64(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(transposed.window(&[1, 0], &[2, 1]).unwrap().to_f64(), [1.0, 2.0]);
        let part = view(&[2, 2], &[3, 1], 1, 6).unwrap();
        assert_eq!(part.literal().unwrap().to_f64(), [1.0, 2.0, 4.0, 5.0]);
        assert_eq!(view(&[2, 2], &[0, 1], 0, 2).unwrap().literal().unwrap().to_f64(), [0.0, 1.0, 0.0, 1.0]);
        assert_eq!(view(&[], &[], 3, 4).unwrap().literal().unwrap().to_f64(), [3.0]);
        let absent = view(&[2], &[1], 0, 0).unwrap();
        assert_eq!((absent.literal().unwrap().to_f64(), absent.has_values()), (vec![0.0, 0.0], false));
    }

    #[test]
    fn what_does_not_fit_its_bytes_is_refused() {
        let code = |shape: &[usize], strides: &[usize], offset, count| {
            view(shape, strides, offset, count).unwrap_err().code
        };
        assert_eq!(code(&[3, 2], &[2, 1], 1, 6), "E354");
        assert_eq!(code(&[3, 2], &[1], 0, 6), "E354");
        assert_eq!(code(&[2, 2], &[usize::MAX, 1], 0, 6), "E354");
        assert_eq!(code(&[2], &[1], usize::MAX, 6), "E354");
        assert_eq!(code(&[1 << 20, 1 << 20], &[0, 0], 0, 6), "E358");
        assert_eq!(code(&[1 << 25], &[0], 0, 6), "E358");
        assert_eq!(code(&[0, 1 << 40], &[0, 0], 0, 6), "E358");
    }
}
