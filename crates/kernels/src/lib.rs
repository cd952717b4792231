//! CPU kernels on strided views: elementwise functions and fused programs of them, copies, reductions,
//! matmul, convolution, windows, sorts, attention, norms, losses, row gathers and counter-based random bits.
//!
//! Knows element types, views and arithmetic; not graphs, meshes or programs. A kernel runs on the calling
//! thread. It allocates nothing, except a packing buffer at a thread's first matmul or convolution (876 KiB, or 1410 KiB
//! with AMX) and executable pages when a compiled chain runs for the first time. For the same shapes and
//! values it gives the same bits, whatever the strides and whatever machine code [`KernelOptions`] allow;
//! only AMX gives other bits. Machine code is in the folder `native`. A kernel that needs scratch memory
//! takes a workspace, and a function gives its size.
//!
//! Views that do not fit a kernel are mistakes of the caller and panic, as slices do; errors that depend on
//! data (a row index out of range) are error values.

// A matrix product takes what that of BLAS takes: sizes, scales, and operands with their strides.
#![allow(clippy::too_many_arguments)]

mod activation;
mod attention;
mod binary;
mod chain;
mod compare;
mod convert;
mod convolution;
mod copy;
mod cross_entropy;
mod element;
mod erf_inv;
mod fused;
mod gather;
mod gemm;
mod grouped;
mod halves;
mod math;
mod matmul;
mod matrix;
mod native;
mod norm;
mod options;
mod random;
mod reduce;
mod rows;
mod scalar;
mod softmax;
mod sort;
mod stream;
mod tiles;
mod total;
mod unary;
mod view;
mod windows;
mod workspace;

pub use activation::{Activation, activation, activation_backward};
pub use attention::{
    AttentionOptions, Places, attention, attention_backward, attention_backward_workspace_bytes,
    attention_pairs, attention_part, attention_part_backward, attention_part_backward_workspace_bytes,
    attention_workspace_bytes,
};
pub use binary::{Binary, binary};
pub use compare::{Direction, clamp, compare, select};
pub use convert::{bitcast, convert};
pub use convolution::{
    Convolution, ConvolutionDims, ConvolutionWindow, convolution, convolution_workspace_bytes,
};
pub use copy::{copy, fill, iota};
pub use cross_entropy::{cross_entropy, cross_entropy_backward};
pub use element::{Bits, Bool, Element, Float, Number, Real};
pub use erf_inv::InverseErf;
pub use fused::{
    ElementwiseOp, ElementwiseProgram, EwFold, EwInstr, FoldDirection, Part, elementwise_workspace_bytes,
    run_elementwise, run_elementwise_part,
};
pub use gather::{gather_rows, scatter_add_rows};
pub use grouped::{
    grouped_matmul, grouped_matmul_workspace_bytes, grouped_outer, grouped_outer_workspace_bytes,
};
pub use matmul::{matmul, matmul_sum_block, matmul_workspace_bytes};
pub use norm::{
    NORM_BLOCK_ROWS, layer_norm, layer_norm_backward, norm_backward_workspace_bytes,
    norm_parameter_gradients, rms_norm, rms_norm_backward,
};
pub use options::{KernelChoice, KernelOptions};
pub use random::{mix, random_bits, random_bits_at, random_key, symmetric_draws};
pub use reduce::{REDUCE_BLOCK_ROWS, Reduction, argmax, block_results_bytes, join_blocks, reduce};
pub use scalar::Scalar;
pub use softmax::{log_softmax, row_workspace_bytes, softmax, softmax_backward};
pub use sort::{Comparator, SortStep, sort, sort_workspace_bytes, top_k, top_k_workspace_bytes};
pub use stream::STREAM_BYTES;
pub use tiles::TILE;
pub use unary::{Unary, unary};
pub use view::{MAX_RANK, View, ViewMut};
pub use windows::{Window, reduce_window, select_and_scatter};
