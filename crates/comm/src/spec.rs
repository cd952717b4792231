//! The description of a collective, as plain data.

use partita_base::{Combiner, DType, Diagnostic, Result};

/// One collective of a program: its members, and an exchange for each tensor of the bucket.
///
/// A collective without exchanges is a barrier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CollectiveSpec {
    /// Its name in messages: a module path, or the kind of the collective.
    pub label: String,
    /// The member ranks. A *member* index is a position in this list; reductions run in its order.
    pub members: Vec<usize>,
    /// The bucket: one exchange per tensor, all done in one rendezvous. Every member passes one
    /// input and one output per exchange (empty ones if it sends or receives nothing).
    pub exchanges: Vec<Exchange>,
}

impl CollectiveSpec {
    /// A collective with the given bucket.
    pub fn new(label: impl Into<String>, members: Vec<usize>, exchanges: Vec<Exchange>) -> Self {
        CollectiveSpec { label: label.into(), members, exchanges }
    }

    /// A barrier: ready when every member has arrived.
    pub fn barrier(members: Vec<usize>) -> Self {
        CollectiveSpec::new("barrier", members, Vec::new())
    }

    /// `bytes` bytes from rank `source` to rank `target`.
    pub fn send(source: usize, target: usize, bytes: usize) -> Self {
        CollectiveSpec::new("send", vec![source, target], vec![Exchange::send(bytes)])
    }

    /// Checks that this collective can run in a world of `rank_count` ranks.
    ///
    /// # Errors
    /// E440 for members, E441 for a combiner that is undefined for the type, E442 for extents that
    /// do not fit.
    pub fn validate(&self, rank_count: usize) -> Result<()> {
        let count = self.members.len();
        if count == 0 {
            return Err(Diagnostic::new("E440", format!("collective `{}` has no members", self.label)));
        }
        for (member, &rank) in self.members.iter().enumerate() {
            if rank >= rank_count || self.members[..member].contains(&rank) {
                return Err(Diagnostic::new(
                    "E440",
                    format!("collective `{}` has invalid members", self.label),
                )
                .expected(format!("distinct ranks below {rank_count}"))
                .found(format!("{:?}", self.members)));
            }
        }
        self.exchanges.iter().try_for_each(|e| e.validate(count).map_err(|d| d.at(self.label.clone())))
    }
}

impl CollectiveSpec {
    /// Panics unless a member's buffers have the right number, sizes and alignment, and inputs are
    /// disjoint from outputs.
    pub(crate) fn expect_buffers(&self, index: usize, inputs: &[*const [u8]], outputs: &[*mut [u8]]) {
        let (label, rank) = (&self.label, self.members[index]);
        assert_eq!(inputs.len(), self.exchanges.len(), "inputs of `{label}`: one per tensor of the bucket");
        assert_eq!(outputs.len(), self.exchanges.len(), "outputs of `{label}`: one per tensor of the bucket");
        for ((exchange, &input), &output) in self.exchanges.iter().zip(inputs).zip(outputs) {
            assert_eq!(
                input.len(),
                exchange.input_bytes(index),
                "bytes of an input of `{label}`, rank {rank}"
            );
            assert_eq!(
                output.len(),
                exchange.output_bytes(index),
                "bytes of an output of `{label}`, rank {rank}"
            );
            let (from, to) = (input.cast::<u8>().addr(), output.cast::<u8>().addr());
            let aligned = |address: usize, bytes: usize| {
                bytes == 0 || address.is_multiple_of(exchange.alignment_bytes())
            };
            assert!(
                aligned(from, input.len()) && aligned(to, output.len()),
                "alignment of buffers of `{label}`"
            );
            let apart = input.len() == 0
                || output.len() == 0
                || from + input.len() <= to
                || to + output.len() <= from;
            assert!(apart, "an input of `{label}` overlaps its output on rank {rank}");
        }
    }
}

/// The operation on one tensor. Buffers are dense and row-major.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Exchange {
    /// Every member passes `len` elements and gets their reduction.
    AllReduce {
        /// How elements are combined.
        combiner: Combiner,
        /// The element type. f16 and bf16 accumulate in f32 and are rounded once, at the end.
        dtype: DType,
        /// Elements of the input and of the output.
        len: usize,
    },
    /// Every member passes `[outer, sum(extents)]`; member `i` gets its `[outer, extents[i]]`
    /// columns, reduced.
    ReduceScatter {
        /// How elements are combined.
        combiner: Combiner,
        /// The element type. f16 and bf16 accumulate in f32 and are rounded once, at the end.
        dtype: DType,
        /// Rows: the product of the dimensions before the scattered one.
        outer: usize,
        /// Per member: elements of its part of one row (the scattered dimension times those after it).
        extents: Vec<usize>,
    },
    /// Boxes are copied between buffers.
    Moves(Moves),
}

/// Boxes copied from members' inputs to members' outputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moves {
    /// Bytes of one element.
    pub element_bytes: usize,
    /// Per member: the shape of its input.
    pub input_shapes: Vec<Vec<usize>>,
    /// Per member: the shape of its output.
    pub output_shapes: Vec<Vec<usize>>,
    /// The boxes. Boxes that arrive at one member must not overlap there.
    pub boxes: Vec<BoxMove>,
    /// Per member: whether its output is filled with zeros before boxes arrive.
    pub zero_fill: Vec<bool>,
}

/// One box, copied from the input of one member to the output of another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BoxMove {
    /// The sending member.
    pub source: usize,
    /// The receiving member.
    pub target: usize,
    /// Its start in the input of `source`, per dimension.
    pub source_start: Vec<usize>,
    /// Its start in the output of `target`, per dimension.
    pub target_start: Vec<usize>,
    /// Its extents; buffers and box have the same number of dimensions.
    pub extents: Vec<usize>,
}

/// The start of each extent when they are concatenated.
fn starts(extents: &[usize]) -> impl Iterator<Item = usize> + '_ {
    extents.iter().scan(0, |end, extent| {
        *end += extent;
        Some(*end - extent)
    })
}

impl Exchange {
    /// See [`Exchange::AllReduce`].
    pub fn all_reduce(combiner: Combiner, dtype: DType, len: usize) -> Self {
        Exchange::AllReduce { combiner, dtype, len }
    }

    /// See [`Exchange::ReduceScatter`].
    pub fn reduce_scatter(combiner: Combiner, dtype: DType, outer: usize, extents: Vec<usize>) -> Self {
        Exchange::ReduceScatter { combiner, dtype, outer, extents }
    }

    /// Member `i` passes `[outer, row_bytes[i]]`; all get `[outer, sum(row_bytes)]`, concatenated
    /// row by row.
    pub fn all_gather(outer: usize, row_bytes: &[usize]) -> Self {
        let count = row_bytes.len();
        let boxes = starts(row_bytes).zip(row_bytes).enumerate().flat_map(|(source, (start, &bytes))| {
            (0..count).map(move |target| BoxMove {
                source,
                target,
                source_start: vec![0, 0],
                target_start: vec![0, start],
                extents: vec![outer, bytes],
            })
        });
        Exchange::Moves(Moves {
            element_bytes: 1,
            input_shapes: row_bytes.iter().map(|&bytes| vec![outer, bytes]).collect(),
            output_shapes: vec![vec![outer, row_bytes.iter().sum()]; count],
            boxes: boxes.collect(),
            zero_fill: vec![false; count],
        })
    }

    /// Every member splits its input along `split` and sends part `j` to member `j`, which
    /// concatenates what it receives along `concat`, in member order.
    ///
    /// `shape` holds the dimensions common to all; its entries at `split` and `concat` are ignored.
    /// Input of member `i`: `sum(split_extents)` along `split`, `concat_extents[i]` along `concat`.
    /// Output of member `j`: `split_extents[j]` along `split`, `sum(concat_extents)` along
    /// `concat`. If `split == concat`, member `j` gets one part of `split_extents[j]` from each
    /// member and `concat_extents` is ignored.
    pub fn all_to_all(
        element_bytes: usize,
        shape: &[usize],
        split: usize,
        concat: usize,
        split_extents: &[usize],
        concat_extents: &[usize],
    ) -> Self {
        let count = split_extents.len();
        let (split_total, concat_total) = (split_extents.iter().sum(), concat_extents.iter().sum());
        let with = |along_split: usize, along_concat: usize| {
            let mut shape = shape.to_vec();
            shape[concat] = along_concat;
            if split != concat {
                shape[split] = along_split;
            }
            shape
        };
        let at = |dimension: usize, start: usize| {
            let mut place = vec![0; shape.len()];
            place[dimension] = start;
            place
        };
        let mut moves = Moves {
            element_bytes,
            input_shapes: Vec::new(),
            output_shapes: Vec::new(),
            boxes: Vec::new(),
            zero_fill: vec![false; count],
        };
        let concat_starts: Vec<usize> = starts(concat_extents).collect();
        for (target, (split_start, &split_extent)) in starts(split_extents).zip(split_extents).enumerate() {
            let same = split == concat;
            moves
                .input_shapes
                .push(with(split_total, if same { split_total } else { concat_extents[target] }));
            moves
                .output_shapes
                .push(with(split_extent, if same { count * split_extent } else { concat_total }));
            for source in 0..count {
                moves.boxes.push(BoxMove {
                    source,
                    target,
                    source_start: at(split, split_start),
                    target_start: at(
                        concat,
                        if same { source * split_extent } else { concat_starts[source] },
                    ),
                    extents: with(split_extent, if same { split_extent } else { concat_extents[source] }),
                });
            }
        }
        Exchange::Moves(moves)
    }

    /// For each `(source, target)` pair of members the whole input of `source` becomes the output
    /// of `target`. A member that is no target gets zeros.
    pub fn collective_permute(
        pairs: &[(usize, usize)],
        input_bytes: &[usize],
        output_bytes: &[usize],
    ) -> Self {
        let one = |bytes: &[usize]| bytes.iter().map(|&b| vec![b]).collect::<Vec<_>>();
        let boxes = pairs.iter().map(|&(source, target)| BoxMove {
            source,
            target,
            source_start: vec![0],
            target_start: vec![0],
            extents: vec![input_bytes.get(source).copied().unwrap_or(0)],
        });
        Exchange::Moves(Moves {
            element_bytes: 1,
            input_shapes: one(input_bytes),
            output_shapes: one(output_bytes),
            boxes: boxes.collect(),
            zero_fill: (0..output_bytes.len()).map(|m| pairs.iter().all(|&(_, t)| t != m)).collect(),
        })
    }

    /// The input of member `root` (`bytes` bytes; the others pass nothing) becomes the output of
    /// every member.
    pub fn broadcast(member_count: usize, root: usize, bytes: usize) -> Self {
        let pairs: Vec<_> = (0..member_count).map(|target| (root, target)).collect();
        let input_bytes: Vec<_> = (0..member_count).map(|m| if m == root { bytes } else { 0 }).collect();
        Exchange::collective_permute(&pairs, &input_bytes, &vec![bytes; member_count])
    }

    /// `bytes` bytes from member 0, which receives nothing, to member 1, which sends nothing.
    pub fn send(bytes: usize) -> Self {
        Exchange::collective_permute(&[(0, 1)], &[bytes, 0], &[0, bytes])
    }

    /// Bytes of the input buffer of a member.
    pub fn input_bytes(&self, member: usize) -> usize {
        match self {
            Exchange::AllReduce { dtype, len, .. } => len * dtype.size_bytes(),
            Exchange::ReduceScatter { dtype, outer, extents, .. } => {
                outer * extents.iter().sum::<usize>() * dtype.size_bytes()
            }
            Exchange::Moves(m) => m.input_shapes[member].iter().product::<usize>() * m.element_bytes,
        }
    }

    /// Bytes of the output buffer of a member.
    pub fn output_bytes(&self, member: usize) -> usize {
        match self {
            Exchange::AllReduce { dtype, len, .. } => len * dtype.size_bytes(),
            Exchange::ReduceScatter { dtype, outer, extents, .. } => {
                outer * extents[member] * dtype.size_bytes()
            }
            Exchange::Moves(m) => m.output_shapes[member].iter().product::<usize>() * m.element_bytes,
        }
    }

    /// The required alignment of both buffers, in bytes.
    pub fn alignment_bytes(&self) -> usize {
        match self {
            Exchange::AllReduce { dtype, .. } | Exchange::ReduceScatter { dtype, .. } => dtype.size_bytes(),
            Exchange::Moves(_) => 1,
        }
    }

    fn validate(&self, member_count: usize) -> Result<()> {
        match self {
            Exchange::AllReduce { combiner, dtype, .. } => combiner_fits(*combiner, *dtype),
            Exchange::ReduceScatter { combiner, dtype, extents, .. } => {
                per_member("extents", extents.len(), member_count)?;
                combiner_fits(*combiner, *dtype)
            }
            Exchange::Moves(moves) => {
                per_member("input shapes", moves.input_shapes.len(), member_count)?;
                per_member("output shapes", moves.output_shapes.len(), member_count)?;
                per_member("zero-fill flags", moves.zero_fill.len(), member_count)?;
                moves.boxes.iter().try_for_each(|b| moves.contain(b))?;
                (0..member_count).try_for_each(|target| moves.arrive_apart(target))
            }
        }
    }
}

impl Moves {
    fn contain(&self, moved: &BoxMove) -> Result<()> {
        let fits = |shapes: &[Vec<usize>], member: usize, start: &[usize]| {
            shapes.get(member).is_some_and(|shape| {
                shape.len() == start.len()
                    && shape.len() == moved.extents.len()
                    && (0..shape.len())
                        .all(|d| start[d].checked_add(moved.extents[d]).is_some_and(|end| end <= shape[d]))
            })
        };
        if fits(&self.input_shapes, moved.source, &moved.source_start)
            && fits(&self.output_shapes, moved.target, &moved.target_start)
        {
            return Ok(());
        }
        Err(Diagnostic::new("E442", "a copied box exceeds its input or output")
            .expected(format!("inputs {:?}, outputs {:?}", self.input_shapes, self.output_shapes))
            .found(format!("{moved:?}")))
    }

    /// Boxes arrive in any order, so they must not overlap.
    fn arrive_apart(&self, target: usize) -> Result<()> {
        let boxes: Vec<&BoxMove> = self.boxes.iter().filter(|b| b.target == target).collect();
        for (index, a) in boxes.iter().enumerate() {
            for b in &boxes[..index] {
                let overlap = (0..a.extents.len()).all(|d| {
                    a.target_start[d] < b.target_start[d] + b.extents[d]
                        && b.target_start[d] < a.target_start[d] + a.extents[d]
                });
                if overlap {
                    return Err(Diagnostic::new("E442", "two boxes of a collective overlap in the output")
                        .found(format!("{a:?} and {b:?}")));
                }
            }
        }
        Ok(())
    }
}

fn per_member(what: &str, found: usize, member_count: usize) -> Result<()> {
    if found == member_count {
        return Ok(());
    }
    Err(Diagnostic::new("E442", format!("a collective needs {what} for each member"))
        .expected(member_count.to_string())
        .found(found.to_string()))
}

fn combiner_fits(combiner: Combiner, dtype: DType) -> Result<()> {
    if combiner.is_defined_on(dtype) {
        return Ok(());
    }
    Err(Diagnostic::new("E441", format!("combiner {combiner:?} is not defined for {dtype}"))
        .expected("Sum, Max, Min or Prod on floats"))
}
