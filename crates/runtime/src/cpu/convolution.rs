//! `convolution` in all its numbers.

use partita_ir::ops::{self, ConvolutionSide};
use partita_kernels::{self as kernels, Convolution, ConvolutionDims, ConvolutionWindow, KernelOptions};

use super::{Kernel, Value};
use crate::arena::Place;

fn dims(side: &ConvolutionSide) -> ConvolutionDims {
    ConvolutionDims { batch: side.batch, feature: side.feature, spatial: side.spatial.clone() }
}

/// The convolution of a share of its operands, whose shapes say how many groups it has.
pub(super) fn compile(
    op: &ops::Convolution,
    options: KernelOptions,
    operands: Vec<Value>,
    out: Place,
) -> Option<Kernel> {
    let window = |window: &ops::ConvolutionWindow| ConvolutionWindow {
        stride: window.stride,
        low: window.padding.0,
        input_dilation: window.input_dilation,
        kernel_dilation: window.kernel_dilation,
        reversed: window.reversed,
    };
    let numbers = Convolution {
        input: dims(&op.input),
        kernel: dims(&op.kernel),
        output: dims(&op.output),
        windows: op.windows.iter().map(window).collect(),
        groups_of_batch: op.batch_groups > 1,
    };
    let workspace_bytes = kernels::convolution_workspace_bytes(
        &numbers,
        [
            (operands[0].dtype(), operands[0].shape()),
            (operands[1].dtype(), operands[1].shape()),
            (out.dtype, &out.shape),
        ],
    );
    Some(Kernel::new(workspace_bytes, move |memory, workspace| {
        let (input, kernel) = (operands[0].view(memory), operands[1].view(memory));
        let workspace = memory.bytes_mut(workspace);
        kernels::convolution(options, &numbers, &input, &kernel, &mut memory.view_mut(&out), workspace);
        Ok(())
    }))
}
