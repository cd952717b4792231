//! The intra-operator search: how the ops of one step are sharded over the axes of a mesh.
//!
//! Each op is a variable whose choices are the strategies that its factor rule gives, each with the layouts in which its
//! results may be kept: as they are produced, reduced, or gathered for several readers. Each parameter is a variable over
//! its layouts, shared with its optimizer states and its new value. An edge prices the reshard from what one variable
//! keeps to what another needs. Elementwise ops follow an operand. The axes that shard the batch (`dp`, `fsdp`) keep doing
//! so, as everywhere in Partita; the search chooses over the other axes.

mod choices;
mod prices;
mod table;

pub use prices::{Forbidden, Prices};
pub use table::{Exchange, Found, Options, Table};
