//! Combiners: the reductions of partial values.

use crate::DType;
use std::fmt;

/// How partial values are reduced. Associative and commutative up to rounding; if order matters, it
/// is rank order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Combiner {
    /// Addition; identity 0. Integers wrap; on booleans the same as `Or`.
    Sum,
    /// The larger; identity the smallest value. NaN propagates, and +0 is larger than -0.
    Max,
    /// The smaller; identity the largest value. NaN propagates, and -0 is smaller than +0.
    Min,
    /// Multiplication; identity 1. Integers wrap; on booleans the same as `And`.
    Prod,
    /// Logical, on integers bitwise, and; identity all ones. Not defined on floats.
    And,
    /// Logical, on integers bitwise, or; identity 0. Not defined on floats.
    Or,
}

impl Combiner {
    /// Every combiner, in declaration order.
    pub const ALL: [Combiner; 6] =
        [Combiner::Sum, Combiner::Max, Combiner::Min, Combiner::Prod, Combiner::And, Combiner::Or];

    /// `sum`, `max`, `min`, `prod`, `and`, `or`.
    pub fn name(self) -> &'static str {
        match self {
            Combiner::Sum => "sum",
            Combiner::Max => "max",
            Combiner::Min => "min",
            Combiner::Prod => "prod",
            Combiner::And => "and",
            Combiner::Or => "or",
        }
    }

    /// Whether the combiner is defined on elements of this type.
    pub fn is_defined_on(self, dtype: DType) -> bool {
        !(dtype.is_float() && matches!(self, Combiner::And | Combiner::Or))
    }
}

impl fmt::Display for Combiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
