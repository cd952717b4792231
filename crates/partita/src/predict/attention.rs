//! How the attention of a predicted step is computed.

/// How attention is computed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum AttentionKernel {
    /// As one kernel, which reaches this part of the rate of a matmul.
    Fused(f64),
    /// As matmuls with a softmax between them: 13 bytes of each score move in the forward pass and 17 in the backward
    /// pass, those of the fused softmax and the dropout of Megatron-LM in half precision. The matmuls reach this part of
    /// the rate of a large one.
    Unfused(f64),
}

impl AttentionKernel {
    /// Attention as matmuls and a softmax, for heads of so many features. Matrix units take rows of 16 bytes, so that heads
    /// of another size than a multiple of 8 are multiplied without them, at a quarter of the rate (312 and 78 TFLOP/s of
    /// A100, NVIDIA's data sheet).
    pub fn unfused(head_features: usize) -> AttentionKernel {
        AttentionKernel::Unfused(if head_features.is_multiple_of(8) { UNFUSED } else { UNFUSED / 4.0 })
    }
}

/// The part of the rate of a large matmul that the small ones of attention reach.
const UNFUSED: f64 = 0.6;
