//! Minimises a sum of costs of choices that depend on each other in pairs, within a limit of memory.
//!
//! A [`Problem`] has variables with a few choices each, a cost and an amount of memory for each choice, and cost matrices
//! between pairs of variables. This is a weighted constraint network, or a partitioned Boolean quadratic problem. It is
//! solved by bucket elimination along a tree decomposition (R. Dechter, "Bucket elimination: a unifying framework for
//! reasoning", 1999). Where tables would become too large, mini-buckets give a lower bound (R. Dechter, I. Rish,
//! "Mini-buckets: a general scheme for bounded inference", 2003). The limit of memory is relaxed with a Lagrange
//! multiplier, and what is left between the bound and the best choice is searched by branch and bound.
//!
//! Choices that another one beats whatever its neighbours choose are removed first. Equal tables are computed once: an
//! elimination is known by the tables that enter it. So a model of many equal layers costs little more than one of a few.

mod eliminate;
mod problem;
mod reduce;
mod search;

pub use problem::{Edge, Problem, Variable};
pub use search::{Effort, Outcome, Solution, solve};
