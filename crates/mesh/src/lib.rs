//! Stand-in.
#![allow(missing_docs)]
use smallvec::SmallVec;
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Axis {
    pub name: String,
    pub size: usize,
}
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Mesh {
    pub name: String,
    pub axes: Vec<Axis>,
    pub device_ids: Option<Vec<usize>>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct AxisRef {
    pub axis: usize,
    pub pre: usize,
    pub size: usize,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Combiner {
    Sum,
    Max,
    Min,
    Prod,
    And,
    Or,
}
pub type AxisList = SmallVec<[AxisRef; 2]>;
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DimSharding {
    pub axes: AxisList,
    pub unit: usize,
}
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sharding {
    pub dims: Vec<DimSharding>,
    pub partial: Vec<(AxisRef, Combiner)>,
}
