//! One call of an op while its program is imported: the arguments by name, with the defaults of the
//! op's schema, and the graph under construction.

use super::alias::TensorRef;
pub use super::alias::{View, put_back};
use super::lower::{Binding, Lowering, Scope};
use super::schema::{Argument, Graph, Int, Node};
use super::{known, symbols};
use partita_base::{DType, Diagnostic, Result};
use partita_ir::{GraphBuilder, Literal, TensorType, ValueId};

/// A number among the arguments.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scalar {
    /// A Python int.
    Int(i64),
    /// A Python float.
    Float(f64),
    /// A Python bool.
    Bool(bool),
    /// A Python complex: its real and its imaginary part.
    Complex([f64; 2]),
}

impl Scalar {
    /// As a float; of a complex number the real part.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Int(value) => value as f64,
            Scalar::Float(value) => value,
            Scalar::Bool(value) => f64::from(u8::from(value)),
            Scalar::Complex([re, _]) => re,
        }
    }

    /// Whether a factor of this changes nothing.
    pub fn is_one(self) -> bool {
        self.as_f64() == 1.0 && !matches!(self, Scalar::Complex([_, im]) if im != 0.0)
    }
}

/// One result of a call.
pub enum Out {
    /// A new tensor.
    Value(ValueId),
    /// A view of an argument.
    View {
        /// The name of the argument.
        of: TensorRef,
        /// How it derives.
        views: Vec<View>,
        /// Whether gradients stop.
        detach: bool,
    },
    /// A number.
    Scalar(Scalar),
    /// A result that is not computed; reading it is an error.
    Absent,
}

impl From<ValueId> for Out {
    fn from(value: ValueId) -> Out {
        Out::Value(value)
    }
}

/// Results of one call.
pub type Outs = Result<Vec<Out>>;

/// A call in progress.
pub struct Call<'a, 'p> {
    pub(super) lowering: &'a mut Lowering<'p>,
    pub(super) scope: &'a Scope,
    pub(super) node: &'p Node,
    pub(super) graph: &'p Graph,
    /// The types of the results that the file states: element type by position.
    pub(super) declared: Vec<Option<DType>>,
    /// The tensors that were read.
    pub(super) read: Vec<TensorRef>,
    /// How many nodes the graph had before the call.
    pub(super) before: usize,
}

impl Call<'_, '_> {
    /// The graph under construction.
    pub fn b(&mut self) -> &mut GraphBuilder {
        &mut self.lowering.cx.builder
    }

    /// The model under construction, for functions of `nn`.
    pub fn cx(&mut self) -> &mut partita_nn::Context {
        &mut self.lowering.cx
    }

    /// The name of the op.
    pub fn op(&self) -> &str {
        self.node.target.strip_prefix("torch.ops.").unwrap_or(&self.node.target)
    }

    /// The number of results.
    pub fn result_count(&self) -> usize {
        self.declared.len()
    }

    /// The element type of a result as the file states it.
    pub fn result_dtype(&self, position: usize) -> Result<DType> {
        self.declared.get(position).copied().flatten().ok_or_else(|| {
            Diagnostic::new("E357", format!("`{}` has no result {position}", self.op()))
                .expected("a result with an element type")
                .found(format!("{} results", self.declared.len()))
        })
    }

    /// The number of ranks that the program is one of. E357 for a program without collectives.
    pub fn ranks(&self) -> Result<usize> {
        self.lowering.ranks.ok_or_else(|| {
            Diagnostic::new("E357", format!("`{}` has no group of ranks", self.op()))
                .expected("an argument `group_name`")
                .found("none")
        })
    }

    /// E356: the op is known, but not with this argument.
    pub fn unsupported(&self, expected: &str, found: impl Into<String>) -> Box<Diagnostic> {
        Diagnostic::new("E356", format!("`{}` is called in a way that has no counterpart", self.op()))
            .expected(expected)
            .found(found)
    }

    fn argument(&self, name: &str) -> Option<&Argument> {
        self.node.inputs.iter().find(|input| input.name == name).map(|input| &input.arg)
    }

    /// Whether an argument is given and not `None`.
    pub fn has(&self, name: &str) -> bool {
        !matches!(self.argument(name), None | Some(Argument::None))
    }

    fn wrong(&self, name: &str, expected: &str) -> Box<Diagnostic> {
        let found = match self.argument(name) {
            None => "nothing".to_string(),
            Some(Argument::Graph(_)) => "a graph".to_string(),
            Some(argument) => format!("{argument:?}").chars().take(200).collect(),
        };
        self.unsupported(&format!("{expected} as argument `{name}`"), found)
    }

    fn binding(&self, name: &str) -> Result<&Binding> {
        self.scope.get(name)
    }

    // ---- tensors ---------------------------------------------------------------------------------------

    /// The tensor of an argument without reading it.
    pub fn reference(&self, name: &str) -> Result<TensorRef> {
        match self.argument(name) {
            Some(Argument::Tensor(tensor)) => match self.binding(tensor)? {
                Binding::Tensor(tensor) => Ok(*tensor),
                Binding::Scalar(_) | Binding::Absent => Err(self.wrong(name, "a tensor")),
            },
            _ => Err(self.wrong(name, "a tensor")),
        }
    }

    fn value(&mut self, tensor: TensorRef) -> Result<ValueId> {
        self.read.push(tensor);
        let lowering = &mut *self.lowering;
        lowering.tensors.read(&mut lowering.cx.builder, tensor, lowering.grad)
    }

    /// The value of a tensor argument.
    pub fn tensor(&mut self, name: &str) -> Result<ValueId> {
        let tensor = self.reference(name)?;
        self.value(tensor)
    }

    /// The value of a tensor argument that may be missing.
    pub fn maybe(&mut self, name: &str) -> Result<Option<ValueId>> {
        if self.has(name) { self.tensor(name).map(Some) } else { Ok(None) }
    }

    /// The references of a list of tensors; `None` for missing ones.
    pub fn references(&self, name: &str) -> Result<Vec<Option<TensorRef>>> {
        let find = |tensor: &String| match self.binding(tensor)? {
            Binding::Tensor(tensor) => Ok(Some(*tensor)),
            Binding::Scalar(_) | Binding::Absent => Err(self.wrong(name, "tensors")),
        };
        match self.argument(name) {
            Some(Argument::Tensors(names)) => names.iter().map(find).collect(),
            Some(Argument::OptionalTensors(names)) => {
                names.iter().map(|name| name.as_ref().map_or(Ok(None), find)).collect()
            }
            _ => Err(self.wrong(name, "tensors")),
        }
    }

    /// The values of a list of tensors; `None` for missing ones.
    pub fn maybe_tensors(&mut self, name: &str) -> Result<Vec<Option<ValueId>>> {
        let references = self.references(name)?;
        references.into_iter().map(|tensor| tensor.map(|tensor| self.value(tensor)).transpose()).collect()
    }

    /// The values of a list of tensors, all of them present.
    pub fn tensors(&mut self, name: &str) -> Result<Vec<ValueId>> {
        let all: Option<Vec<ValueId>> = self.maybe_tensors(name)?.into_iter().collect();
        all.ok_or_else(|| self.wrong(name, "tensors, none missing"))
    }

    /// Whether an argument is a tensor.
    pub fn is_tensor(&self, name: &str) -> bool {
        matches!(self.argument(name), Some(Argument::Tensor(_)))
    }

    /// A view of an argument as the only result.
    pub fn view(&mut self, name: &str, views: Vec<View>) -> Outs {
        Ok(vec![Out::View { of: self.reference(name)?, views, detach: false }])
    }

    /// An argument under another shape as the only result. A view where PyTorch makes one, else a copy:
    /// that matters if one of both is changed in place.
    pub fn reshaped(&mut self, name: &str, shape: Vec<usize>) -> Outs {
        if self.strides(name).is_none_or(|strides| is_view(&strides, &shape)) {
            return self.view(name, vec![View::Reshape(shape)]);
        }
        let value = self.tensor(name)?;
        Ok(vec![Out::Value(self.b().reshape(value, &shape)?)])
    }

    /// An argument in row-major order as the only result: itself if it is, else a copy.
    pub fn dense(&mut self, name: &str) -> Outs {
        if self.strides(name).is_none_or(|strides| is_dense(&strides)) {
            return self.view(name, Vec::new());
        }
        Ok(vec![Out::Value(self.tensor(name)?)])
    }

    /// Extents and strides of a tensor argument, where the file has them as numbers.
    fn strides(&self, name: &str) -> Option<Vec<(usize, usize)>> {
        let Some(Argument::Tensor(tensor)) = self.argument(name) else { return None };
        let meta = self.graph.tensor_values.get(tensor)?;
        let number = |size| symbols::value(size, &self.lowering.extents);
        meta.sizes.iter().zip(&meta.strides).map(|(size, stride)| number(size).zip(number(stride))).collect()
    }

    /// Stops gradients through a tensor argument from here on.
    pub fn detach(&mut self, name: &str) -> Result<TensorRef> {
        let tensor = self.reference(name)?;
        self.lowering.tensors.detach(tensor);
        Ok(tensor)
    }

    /// Replaces the elements of a tensor argument; no gradient flows into the new ones.
    pub fn update(&mut self, name: &str, new: ValueId) -> Result<()> {
        let tensor = self.reference(name)?;
        let lowering = &mut *self.lowering;
        lowering.tensors.write(&mut lowering.cx.builder, tensor, new, lowering.grad, false)
    }

    /// A value that depends on no input, if it is small: what the import can compute.
    pub fn known(&self, value: ValueId) -> Option<Literal> {
        known::value(self.lowering.cx.builder.graph(), value)
    }

    // ---- numbers ---------------------------------------------------------------------------------------

    fn resolve(&self, int: &Int) -> Result<i64> {
        match int {
            Int::Value(value) => Ok(*value),
            Int::Name(name) => match self.binding(name)? {
                Binding::Scalar(Scalar::Int(value)) => Ok(*value),
                _ => Err(Diagnostic::new("E357", format!("`{name}` is used as a size"))
                    .expected("an integer")
                    .found("something else")),
            },
        }
    }

    fn as_scalar(&self, name: &str, argument: &Argument) -> Result<Scalar> {
        Ok(match argument {
            Argument::Int(int) => Scalar::Int(self.resolve(int)?),
            Argument::Float(value) => Scalar::Float(*value),
            Argument::Bool(value) => Scalar::Bool(*value),
            Argument::Complex(value) => Scalar::Complex(*value),
            Argument::Computed(computed) => match self.binding(computed)? {
                Binding::Scalar(value) => *value,
                Binding::Tensor(_) | Binding::Absent => return Err(self.wrong(name, "a number")),
            },
            _ => return Err(self.wrong(name, "a number")),
        })
    }

    /// A number argument, `None` if it is missing.
    pub fn scalar(&self, name: &str) -> Result<Option<Scalar>> {
        match self.argument(name) {
            None | Some(Argument::None) => Ok(None),
            Some(argument) => self.as_scalar(name, argument).map(Some),
        }
    }

    /// All arguments as numbers, by position.
    pub fn numbers(&self) -> Result<Vec<Scalar>> {
        self.node.inputs.iter().map(|input| self.as_scalar(&input.name, &input.arg)).collect()
    }

    /// A number argument that must be given.
    pub fn number(&self, name: &str) -> Result<Scalar> {
        self.scalar(name)?.ok_or_else(|| self.wrong(name, "a number"))
    }

    /// A float argument with its default.
    pub fn float(&self, name: &str, default: f64) -> Result<f64> {
        match self.scalar(name)? {
            Some(Scalar::Complex(_)) => Err(self.wrong(name, "a real number")),
            given => Ok(given.map_or(default, Scalar::as_f64)),
        }
    }

    /// An integer argument, `None` if it is missing.
    pub fn maybe_int(&self, name: &str) -> Result<Option<i64>> {
        match self.scalar(name)? {
            None => Ok(None),
            Some(Scalar::Int(value)) => Ok(Some(value)),
            Some(Scalar::Bool(value)) => Ok(Some(value.into())),
            Some(Scalar::Float(_) | Scalar::Complex(_)) => Err(self.wrong(name, "an integer")),
        }
    }

    /// An integer argument with its default.
    pub fn int(&self, name: &str, default: i64) -> Result<i64> {
        Ok(self.maybe_int(name)?.unwrap_or(default))
    }

    /// An integer argument that must be given.
    pub fn required_int(&self, name: &str) -> Result<i64> {
        self.maybe_int(name)?.ok_or_else(|| self.wrong(name, "an integer"))
    }

    /// A boolean argument with its default.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.scalar(name)? {
            None => Ok(default),
            Some(Scalar::Bool(value)) => Ok(value),
            Some(_) => Err(self.wrong(name, "a boolean")),
        }
    }

    /// A text argument with its default.
    pub fn text(&self, name: &str, default: &'static str) -> Result<&str> {
        match self.argument(name) {
            None | Some(Argument::None) => Ok(default),
            Some(Argument::Text(text)) => Ok(text),
            Some(_) => Err(self.wrong(name, "a text")),
        }
    }

    /// A list of integers; `None` if it is missing. A single integer is a list of one.
    pub fn maybe_ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        match self.argument(name) {
            None | Some(Argument::None) => Ok(None),
            Some(Argument::Ints(ints)) => {
                ints.iter().map(|int| self.resolve(int)).collect::<Result<_>>().map(Some)
            }
            Some(Argument::Int(int)) => Ok(Some(vec![self.resolve(int)?])),
            // An empty list has no element to tell its kind.
            Some(Argument::Tensors(names)) if names.is_empty() => Ok(Some(Vec::new())),
            Some(_) => Err(self.wrong(name, "integers")),
        }
    }

    /// A list of integers that must be given.
    pub fn ints(&self, name: &str) -> Result<Vec<i64>> {
        self.maybe_ints(name)?.ok_or_else(|| self.wrong(name, "integers"))
    }

    /// A list of floats; `None` if it is missing.
    pub fn maybe_floats(&self, name: &str) -> Result<Option<Vec<f64>>> {
        match self.argument(name) {
            None | Some(Argument::None) => Ok(None),
            Some(Argument::Floats(values)) => Ok(Some(values.clone())),
            Some(Argument::Ints(_)) => {
                Ok(self.maybe_ints(name)?.map(|v| v.into_iter().map(|i| i as f64).collect()))
            }
            Some(_) => Err(self.wrong(name, "floats")),
        }
    }

    // ---- shapes ----------------------------------------------------------------------------------------

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> TensorType {
        self.lowering.cx.builder.ty(value).clone()
    }

    /// The type of a tensor that is not read.
    pub fn type_of(&self, tensor: TensorRef) -> TensorType {
        self.lowering.cx.builder.ty(self.lowering.tensors.last_value(tensor)).clone()
    }

    /// The shape of a value.
    pub fn shape(&self, value: ValueId) -> Vec<usize> {
        self.lowering.cx.builder.shape(value)
    }

    /// A dimension that may count from the last. E356 if a tensor of `rank` dimensions lacks it; a
    /// scalar has dimension 0, as in PyTorch.
    pub fn wrap(&self, dim: i64, rank: usize) -> Result<usize> {
        let extent = rank.max(1) as i64;
        match (-extent..extent).contains(&dim) {
            true => Ok(dim.rem_euclid(extent) as usize),
            false => {
                Err(self
                    .unsupported(&format!("a dimension from {} to {}", -extent, extent - 1), dim.to_string()))
            }
        }
    }

    /// Distinct dimensions that may count from the last.
    pub fn wrap_all(&self, dims: &[i64], rank: usize) -> Result<Vec<usize>> {
        let mut wrapped = Vec::with_capacity(dims.len());
        for &dim in dims {
            let dim = self.wrap(dim, rank)?;
            if wrapped.contains(&dim) {
                return Err(self.unsupported("different dimensions", format!("{dims:?}")));
            }
            wrapped.push(dim);
        }
        Ok(wrapped)
    }

    /// A shape argument. E356 for negative extents, E358 for too many elements.
    pub fn extents(&self, sizes: &[i64]) -> Result<Vec<usize>> {
        let extents: Option<Vec<usize>> = sizes.iter().map(|&size| usize::try_from(size).ok()).collect();
        let extents = extents.ok_or_else(|| self.unsupported("sizes of at least 0", format!("{sizes:?}")))?;
        self.check_size(&extents)?;
        Ok(extents)
    }

    /// The most elements that a tensor may have.
    pub fn most_elements(&self) -> usize {
        self.lowering.limits.elements
    }

    /// E358 if a tensor of this shape has too many elements.
    pub fn check_size(&self, shape: &[usize]) -> Result<()> {
        self.lowering.limits.count(shape, &format!("a tensor of `{}`", self.op())).map(|_| ())
    }

    /// A shape where one extent may be -1, for `count` elements.
    pub fn inferred(&self, sizes: &[i64], count: usize) -> Result<Vec<usize>> {
        let wrong = || self.unsupported(&format!("a shape of {count} elements"), format!("{sizes:?}"));
        let known = sizes.iter().filter(|&&size| size != -1);
        let mut known = known.map(|&size| usize::try_from(size).ok());
        let known = known.try_fold(1usize, |product, size| product.checked_mul(size?)).ok_or_else(wrong)?;
        let open = sizes.iter().filter(|&&size| size == -1).count();
        let fill = match open {
            0 => 0,
            1 if known > 0 && count.is_multiple_of(known) => count / known,
            _ => return Err(wrong()),
        };
        let shape: Vec<usize> =
            sizes.iter().map(|&size| if size == -1 { fill } else { size as usize }).collect();
        self.check_size(&shape)?;
        if shape.iter().product::<usize>() == count { Ok(shape) } else { Err(wrong()) }
    }

    /// The shape that two shapes broadcast to, as in NumPy.
    pub fn joint_shape(&self, a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
        let rank = a.len().max(b.len());
        let extent =
            |shape: &[usize], dim: usize| (dim + shape.len()).checked_sub(rank).map_or(1, |d| shape[d]);
        let mut joint = Vec::with_capacity(rank);
        for dim in 0..rank {
            joint.push(match (extent(a, dim), extent(b, dim)) {
                (x, y) if x == y => x,
                (1, y) => y,
                (x, 1) => x,
                _ => return Err(self.unsupported("shapes that broadcast", format!("{a:?} and {b:?}"))),
            });
        }
        self.check_size(&joint)?;
        Ok(joint)
    }

    /// A value broadcast to a shape, as in NumPy.
    pub fn spread(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId> {
        if self.shape(x).len() > shape.len() {
            return Err(
                self.unsupported(&format!("a tensor that broadcasts to {shape:?}"), self.ty(x).to_string())
            );
        }
        self.check_size(shape)?;
        self.b().broadcast_trailing(x, shape)
    }

    /// E358 if this call has made more nodes than the file may.
    pub fn check_nodes(&self, more: usize) -> Result<()> {
        let nodes = self.lowering.cx.builder.graph().nodes.len();
        if nodes.saturating_add(more) <= self.lowering.limits.nodes {
            return Ok(());
        }
        let made = nodes - self.before;
        Err(crate::limits::exceeded(
            &format!("what `{}` becomes", self.op()),
            format!("at most {} nodes", self.lowering.limits.nodes),
            format!("{} nodes", made.saturating_add(more)),
        ))
    }

    /// A remark for the user, once.
    pub fn note(&mut self, text: &str) {
        if !self.lowering.notes.iter().any(|note| note == text) {
            self.lowering.notes.push(text.to_string());
        }
    }
}

/// Whether a tensor of these (extent, stride) pairs has a view of another shape, as PyTorch decides it
/// (`computeStride`): dimensions that follow each other in memory form a block, and each block must be
/// divided into new dimensions by itself.
fn is_view(own: &[(usize, usize)], shape: &[usize]) -> bool {
    if shape.contains(&0) || own.is_empty() {
        return true;
    }
    let mut new = shape.len();
    let mut base = own[own.len() - 1].1;
    let (mut block, mut filled) = (1usize, 1usize);
    for dim in (0..own.len()).rev() {
        block = block.saturating_mul(own[dim].0);
        let continues = dim > 0 && (own[dim - 1].0 == 1 || own[dim - 1].1 == block.saturating_mul(base));
        if continues {
            continue;
        }
        while new > 0 && (filled < block || shape[new - 1] == 1) {
            filled = filled.saturating_mul(shape[new - 1]);
            new -= 1;
        }
        if filled != block {
            return false;
        }
        if dim > 0 {
            base = own[dim - 1].1;
            (block, filled) = (1, 1);
        }
    }
    new == 0
}

/// Whether elements are in row-major order without gaps.
fn is_dense(own: &[(usize, usize)]) -> bool {
    let mut next = 1usize;
    own.iter().rev().filter(|(extent, _)| *extent != 1).all(|&(extent, stride)| {
        let fits = stride == next;
        next = next.saturating_mul(extent);
        fits
    }) || own.iter().any(|(extent, _)| *extent == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reshapes_are_views_where_pytorch_makes_views() {
        // [2, 3, 4] in row-major order, transposed to [3, 2, 4], and expanded from [2, 1, 4].
        let (dense, turned) = ([(2, 12), (3, 4), (4, 1)], [(3, 4), (2, 12), (4, 1)]);
        let expanded = [(2, 4), (3, 0), (4, 1)];
        for (own, shape, expected) in [
            (&dense[..], &[24][..], true),
            (&dense, &[6, 4], true),
            (&dense, &[2, 2, 6], true),
            (&turned, &[24], false),
            (&turned, &[6, 4], false),
            (&turned, &[3, 2, 2, 2], true),
            (&turned, &[3, 1, 2, 4], true),
            (&turned, &[3, 8], false),
            (&expanded, &[6, 4], false),
            (&expanded, &[2, 3, 2, 2], true),
            (&[(1, 7), (4, 1)], &[4], true),
            (&[(4, 1), (1, 7)], &[2, 2], true),
            (&[], &[1, 1], true),
        ] {
            assert_eq!(is_view(own, shape), expected, "{own:?} as {shape:?}");
        }
        assert!(is_dense(&dense) && is_dense(&[(1, 9), (4, 1), (1, 3)]) && is_dense(&[(0, 5), (4, 7)]));
        assert!(!is_dense(&turned) && !is_dense(&expanded));
    }
}
