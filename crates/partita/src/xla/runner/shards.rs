//! The shards of tensors: cutting them from global values and joining them again, as bytes.

use crate::xla::Tensor;
use crate::xla::manifest::MANIFEST_FILE;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::{Literal, TensorType};
use std::borrow::Cow;

/// A box of elements: where it begins in each dimension.
type Corner = [usize];

/// Copies a box of the extents `extent` from the corner `from_at` of one row-major tensor to the corner `to_at` of another.
fn copy_box(
    (from, from_shape, from_at): (&[u8], &[usize], &Corner),
    (to, to_shape, to_at): (&mut [u8], &[usize], &Corner),
    extent: &[usize],
    size: usize,
) {
    let Some((&count, inner)) = extent.split_first() else {
        to[..size].copy_from_slice(&from[..size]);
        return;
    };
    if count == 0 {
        return;
    }
    let from_row = from_shape[1..].iter().product::<usize>() * size;
    let to_row = to_shape[1..].iter().product::<usize>() * size;
    let (from, to) = (&from[from_at[0] * from_row..], &mut to[to_at[0] * to_row..]);
    // Whole rows on both sides follow each other.
    if inner == &from_shape[1..] && inner == &to_shape[1..] {
        to[..count * to_row].copy_from_slice(&from[..count * from_row]);
        return;
    }
    for row in 0..count {
        copy_box(
            (&from[row * from_row..], &from_shape[1..], &from_at[1..]),
            (&mut to[row * to_row..], &to_shape[1..], &to_at[1..]),
            inner,
            size,
        );
    }
}

/// The element type and the windows of a tensor, which fit its shapes.
pub struct Layout<'a> {
    tensor: &'a Tensor,
    /// The element type.
    pub dtype: DType,
}

impl<'a> Layout<'a> {
    /// The layout of a tensor on so many ranks.
    ///
    /// # Errors
    /// E061 for a manifest that another version has written, or that is damaged.
    pub fn of(tensor: &'a Tensor, ranks: usize) -> Result<Layout<'a>> {
        let Tensor { shape, held, shards, .. } = tensor;
        let fits = |window: &Vec<[usize; 2]>| {
            let parts = window.iter().zip(shape).zip(held);
            window.len() == shape.len()
                && parts.into_iter().all(|(([start, limit], size), held)| {
                    start <= limit && limit <= size && limit - start <= *held
                })
        };
        let is_good = held.len() == shape.len() && shards.len() == ranks && shards.iter().all(fits);
        match tensor.dtype() {
            Some(dtype) if is_good => Ok(Layout { tensor, dtype }),
            _ => Err(unfit(tensor)),
        }
    }

    /// The layout of a value that stays on its ranks.
    ///
    /// # Errors
    /// As [`Layout::of`].
    pub fn local(tensor: &'a Tensor) -> Result<Layout<'a>> {
        let dtype = tensor.dtype().ok_or_else(|| unfit(tensor))?;
        Ok(Layout { tensor, dtype })
    }

    /// The bytes that each rank holds.
    pub fn held_bytes(&self) -> usize {
        self.tensor.held.iter().product::<usize>() * self.dtype.size_bytes()
    }

    /// The bytes of the global value.
    pub fn global_bytes(&self) -> usize {
        self.tensor.shape.iter().product::<usize>() * self.dtype.size_bytes()
    }

    /// The shard of a rank of a global value, padded; zeros of none.
    pub fn cut<'b>(&self, global: Option<&'b [u8]>, rank: usize) -> Cow<'b, [u8]> {
        let Tensor { shape, held, shards, .. } = self.tensor;
        let size = self.dtype.size_bytes();
        let (start, extent) = corner(&shards[rank]);
        match global {
            Some(global) if extent == *shape && held == shape => Cow::Borrowed(global),
            _ => {
                let mut shard = vec![0; held.iter().product::<usize>() * size];
                if let Some(global) = global {
                    let origin = vec![0; held.len()];
                    copy_box((global, shape, &start), (&mut shard, held, &origin), &extent, size);
                }
                Cow::Owned(shard)
            }
        }
    }

    /// Puts the shard of a rank into a global value.
    ///
    /// # Errors
    /// E061 for a shard of another size.
    pub fn put(&self, shard: &[u8], rank: usize, global: &mut [u8]) -> Result<()> {
        let Tensor { shape, held, shards, .. } = self.tensor;
        let size = self.dtype.size_bytes();
        if shard.len() != held.iter().product::<usize>() * size {
            return Err(unfit(self.tensor));
        }
        let (start, extent) = corner(&shards[rank]);
        let origin = vec![0; held.len()];
        copy_box((shard, held, &origin), (global, shape, &start), &extent, size);
        Ok(())
    }

    /// A number as the bytes of this scalar.
    pub fn number(&self, value: Number) -> Vec<u8> {
        let ty = TensorType::new(self.dtype, Vec::new());
        match value {
            Number::Real(value) => Literal::splat(&ty, value),
            Number::Whole(value) => Literal::splat_int(&ty, i128::from(value)),
        }
        .to_bytes()
    }
}

/// A number that steps read.
#[derive(Clone, Copy)]
pub enum Number {
    /// The learning rate.
    Real(f64),
    /// The number of the step, or the seed.
    Whole(u64),
}

/// The first element of a window in each dimension, and its extents.
fn corner(window: &[[usize; 2]]) -> (Vec<usize>, Vec<usize>) {
    window.iter().map(|[start, limit]| (*start, limit - start)).unzip()
}

/// Puts a part into a whole of the shape `shape` at `start` along `dim`.
pub fn put_part(
    part: (&[u8], &[usize]),
    whole: (&mut [u8], &[usize]),
    dim: usize,
    start: usize,
    size: usize,
) {
    let (part, extent) = part;
    let (whole, shape) = whole;
    let mut at = vec![0; shape.len()];
    at[dim] = start;
    copy_box((part, extent, &vec![0; extent.len()]), (whole, shape, &at), extent, size);
}

/// A scalar on a device as a number.
pub fn scalar(dtype: DType, bytes: &[u8]) -> f64 {
    let value = Literal::from_bytes(&TensorType::new(dtype, Vec::new()), bytes);
    value.and_then(|value| value.to_f64().first().copied()).unwrap_or(f64::NAN)
}

/// E061: a tensor of the manifest does not fit itself.
pub fn unfit(tensor: &Tensor) -> Box<Diagnostic> {
    Diagnostic::new(
        "E061",
        format!("the step cannot be run: the manifest contradicts itself at `{}`", tensor.name),
    )
    .at(MANIFEST_FILE)
    .expected("shards within the shape, of the size that ranks hold")
    .found(format!("shape {:?}, held {:?}, shards {:?}", tensor.shape, tensor.held, tensor.shards))
    .help("export the step again with this version")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xla::Kind;

    fn tensor(shape: &[usize], held: &[usize], shards: &[&[[usize; 2]]]) -> Tensor {
        Tensor {
            name: "w".to_string(),
            kind: Kind::Parameter,
            dtype: "ui8".to_string(),
            shape: shape.to_vec(),
            layout: String::new(),
            held: held.to_vec(),
            shards: shards.iter().map(|shard| shard.to_vec()).collect(),
            rows: None,
            replaced_by: None,
        }
    }

    #[test]
    fn shards_are_cut_with_pads_and_joined_without_them() {
        let uneven = tensor(&[3, 5], &[3, 3], &[&[[0, 3], [0, 3]], &[[0, 3], [3, 5]]]);
        let layout = Layout::of(&uneven, 2).unwrap();
        let global: Vec<u8> = (1..=15).collect();
        assert_eq!(*layout.cut(Some(&global), 0), [1, 2, 3, 6, 7, 8, 11, 12, 13]);
        assert_eq!(*layout.cut(Some(&global), 1), [4, 5, 0, 9, 10, 0, 14, 15, 0]);
        assert_eq!(*layout.cut(None, 1), [0; 9]);
        let mut joined = vec![0; layout.global_bytes()];
        for rank in 0..2 {
            layout.put(&layout.cut(Some(&global), rank), rank, &mut joined).unwrap();
        }
        assert_eq!(joined, global);
        assert_eq!(layout.put(&[0; 8], 0, &mut joined).unwrap_err().code, "E061");
    }

    #[test]
    fn whole_values_are_not_copied_and_scalars_have_no_windows() {
        let whole = tensor(&[2, 2], &[2, 2], &[&[[0, 2], [0, 2]]]);
        let global = [1, 2, 3, 4];
        assert!(matches!(Layout::of(&whole, 1).unwrap().cut(Some(&global), 0), Cow::Borrowed(_)));
        let single = tensor(&[], &[], &[&[]]);
        let layout = Layout::of(&single, 1).unwrap();
        assert_eq!(*layout.cut(None, 0), [0]);
        assert_eq!(layout.number(Number::Whole(7)), [7]);
        assert_eq!(scalar(DType::F32, &1.5f32.to_le_bytes()), 1.5);
        let mut whole = vec![0; 6];
        put_part((&[1, 2], &[2, 1]), (&mut whole, &[2, 3]), 1, 2, 1);
        assert_eq!(whole, [0, 0, 1, 0, 0, 2]);
    }

    #[test]
    fn a_manifest_that_contradicts_itself_is_refused() {
        for wrong in [
            tensor(&[2], &[2], &[]),
            tensor(&[2], &[1], &[&[[0, 2]]]),
            tensor(&[2], &[2], &[&[[1, 3]]]),
            tensor(&[2], &[2, 1], &[&[[0, 2]]]),
            Tensor { dtype: "f31".to_string(), ..tensor(&[2], &[2], &[&[[0, 2]]]) },
        ] {
            assert_eq!(Layout::of(&wrong, 1).err().unwrap().code, "E061");
        }
    }
}
