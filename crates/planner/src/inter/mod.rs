//! The inter-operator search: how the layers of a model become pipeline stages on slices of a cluster.
//!
//! A [`StageTable`] says what each range of layers costs on each kind of slice. [`stages`] finds the stages with the
//! shortest step by the dynamic program of Alpa (L. Zheng et al., 2022, section 5): with the slowest stage bounded, the
//! fewest seconds of all stages one after another. Unlike there, what is sent between stages and the synchronisation of
//! gradients count, any number of devices can be divided, and what a slice costs may depend on its place. The best stages of
//! each count are then timed on the timetable itself.

mod memory;
mod stages;
mod submeshes;

pub use memory::{Memory, most_successors};
pub use stages::{SliceKind, Stage, StageTable, Stages, makespan_s, stages};
pub use submeshes::{Submeshes, submeshes};
