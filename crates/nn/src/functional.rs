//! Functions without parameters for model code, each checked where it is called.

use crate::accumulation_dtype;
use crate::context::Context;
use partita_base::{Diagnostic, Result};
use partita_ir::ValueId;
use partita_ir::composites::SOFTMAX;

impl Context {
    /// Softmax along a dimension; a negative number counts from the last. E163 if the dimension
    /// does not exist, E050 unless elements are floats.
    pub fn softmax(&mut self, x: ValueId, dim: isize) -> Result<ValueId> {
        self.real(x, "softmax")?;
        let dim = self.dims(x, &[dim], "softmax")?[0];
        // The composite works along the last dimension.
        let mut order: Vec<usize> = (0..self.builder.ty(x).rank()).collect();
        let last = order.len() - 1;
        order.swap(dim, last);
        let turned = if dim == last { x } else { self.builder.transpose(x, &order)? };
        let y = self.builder.composite(&SOFTMAX, &[], &[turned])?;
        // Swapping two dimensions twice is the identity.
        if dim == last { Ok(y) } else { self.builder.transpose(y, &order) }
    }

    /// The mean along these dimensions, which the result lacks; a negative number counts from the
    /// last. E163 if one does not exist, is repeated, or is empty; E050 unless elements are floats.
    pub fn mean(&mut self, x: ValueId, dims: &[isize]) -> Result<ValueId> {
        self.real(x, "mean")?;
        let own = self.builder.ty(x).clone();
        let mut dims = self.dims(x, dims, "mean")?;
        dims.sort_unstable();
        let count: usize = dims.iter().map(|&dim| own.shape[dim]).product();
        if count == 0 {
            return Err(self.misfit(
                "the mean of no elements is not defined",
                "dimensions with elements",
                own.to_string(),
            ));
        }
        let b = &mut self.builder;
        let wide = b.convert(x, accumulation_dtype(own.dtype))?;
        let sum = b.reduce_sum(wide, &dims)?;
        let mean = b.scale(sum, 1.0 / count as f64)?;
        b.convert(mean, own.dtype)
    }

    /// `x` broadcast to a shape, as in NumPy: dimensions are aligned at the end, missing ones and
    /// those of extent 1 are repeated. E163 if another extent would change.
    pub fn broadcast(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId> {
        self.builder.check(&[x])?;
        let own = self.builder.shape(x);
        let fits = own.len() <= shape.len()
            && own.iter().rev().zip(shape.iter().rev()).all(|(own, to)| own == to || *own == 1);
        if !fits {
            let expected = format!("a shape that ends in {own:?}, where 1 may become any extent");
            return Err(self.misfit(
                "a tensor cannot be broadcast to this shape",
                &expected,
                format!("{shape:?}"),
            ));
        }
        self.builder.broadcast_trailing(x, shape)
    }

    /// E050 unless a value has a float type; E160 for one of another context.
    pub(crate) fn real(&self, x: ValueId, what: &str) -> Result<()> {
        self.builder.check(&[x])?;
        let ty = self.builder.ty(x);
        if ty.dtype.is_float() {
            return Ok(());
        }
        Err(Diagnostic::new("E050", format!("`{what}` is not defined for this element type"))
            .at(self.builder.path.clone())
            .expected("f32, f64, bf16 or f16")
            .found(ty.to_string()))
    }

    /// Distinct dimensions of a value, counted from the first.
    fn dims(&self, x: ValueId, dims: &[isize], what: &str) -> Result<Vec<usize>> {
        let ty = self.builder.ty(x);
        let rank = ty.rank() as isize;
        let mut counted: Vec<usize> = Vec::with_capacity(dims.len());
        for &dim in dims {
            let from_first = if dim < 0 { dim.saturating_add(rank) } else { dim };
            let exists = (0..rank).contains(&from_first);
            if !exists || counted.contains(&(from_first as usize)) {
                let found = if exists { "a repeated dimension" } else { "no such dimension" };
                let expected = match rank {
                    0 => "a tensor that has dimensions; this is a scalar".to_string(),
                    _ => format!("different dimensions of {ty}, from {} to {}", -rank, rank - 1),
                };
                return Err(self.misfit(
                    &format!("dimension {dim} of `{what}`"),
                    &expected,
                    found.to_string(),
                ));
            }
            counted.push(from_first as usize);
        }
        Ok(counted)
    }

    fn misfit(&self, message: &str, expected: &str, found: String) -> Box<Diagnostic> {
        Diagnostic::new("E163", message).at(self.builder.path.clone()).expected(expected).found(found)
    }
}
