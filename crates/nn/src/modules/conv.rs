//! Convolutions, pooling and norms of images `[batch, height, width, channels]`.

use super::Module;
use crate::accumulation_dtype;
use crate::context::Context;
use crate::init::Init;
use partita_base::Combiner;
use partita_base::{Diagnostic, Result};
use partita_ir::ValueId;
use partita_ir::builder::identity;
use partita_ir::ops::{Convolution, ConvolutionSide, ConvolutionWindow, ReduceWindow, Reducer, UnaryKind};

/// `x[batch, h, w, in]` and `weight[out, in, kernel, kernel]` to `[batch, h', w', out]`, with `h' = (h + 2 padding - kernel)
/// / stride + 1`, as PyTorch's `Conv2d` with channels last.
#[derive(Clone, Debug)]
pub struct Conv2d {
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// The extent of the window in both directions.
    pub kernel: usize,
    /// The distance of windows.
    pub stride: usize,
    /// Zeros around the image on each side.
    pub padding: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// Initial weight.
    pub init: Init,
}

impl Conv2d {
    /// With stride 1 and a bias; the output is as large as the input if the kernel is odd. Initialised as PyTorch does.
    pub fn new(in_channels: usize, out_channels: usize, kernel: usize) -> Conv2d {
        let init = Init::KaimingUniform { fan_in: in_channels * kernel * kernel };
        let padding = kernel.saturating_sub(1) / 2;
        Conv2d { in_channels, out_channels, kernel, stride: 1, padding, bias: true, init }
    }

    /// With another stride.
    pub fn stride(mut self, stride: usize) -> Conv2d {
        self.stride = stride;
        self
    }

    /// With or without a bias.
    pub fn bias(mut self, bias: bool) -> Conv2d {
        self.bias = bias;
        self
    }
}

/// `x[batch, h, w, in]` and `weight[in, out, kernel, kernel]` to `[batch, kernel h, kernel w, out]`: each element becomes a
/// block of its own, as PyTorch's `ConvTranspose2d` whose stride is its kernel, with channels last.
#[derive(Clone, Debug)]
pub struct ConvTranspose2d {
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// The extent of a block.
    pub kernel: usize,
}

/// The dimensions of an image with the channels last.
fn image() -> ConvolutionSide {
    ConvolutionSide { batch: 0, feature: 3, spatial: vec![1, 2] }
}

/// E050 unless the value is an image with this number of channels.
fn check_image(cx: &Context, x: ValueId, channels: usize) -> Result<()> {
    let shape = cx.shape(x);
    if shape.len() == 4 && shape[3] == channels {
        return Ok(());
    }
    Err(Diagnostic::new("E050", "the input is not an image of this layer")
        .at(cx.builder.path.clone())
        .expected(format!("[batch, height, width, {channels}]"))
        .found(format!("{shape:?}")))
}

/// Adds a bias to each channel.
fn with_bias(cx: &mut Context, y: ValueId, channels: usize, init: Init) -> Result<ValueId> {
    let bias = cx.param("bias", &[channels], init)?;
    let shape = cx.shape(y);
    let bias = cx.builder.broadcast_trailing(bias, &shape)?;
    cx.builder.add(y, bias)
}

/// The convolution of an image by a kernel whose dimensions are read as `kernel`, with the same window in both directions.
fn convolve(
    cx: &mut Context,
    [x, weight]: [ValueId; 2],
    kernel: ConvolutionSide,
    window: ConvolutionWindow,
) -> Result<ValueId> {
    let op = Convolution {
        input: image(),
        kernel,
        output: image(),
        windows: vec![window; 2],
        feature_groups: 1,
        batch_groups: 1,
        dtype: cx.builder.ty(x).dtype,
    };
    cx.builder.push1(op, &[x, weight])
}

impl Module for Conv2d {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        check_image(cx, x, self.in_channels)?;
        let shape = [self.out_channels, self.in_channels, self.kernel, self.kernel];
        let weight = cx.param("weight", &shape, self.init)?;
        let padding = (self.padding as i64, self.padding as i64);
        let window = ConvolutionWindow { stride: self.stride, padding, ..ConvolutionWindow::default() };
        let kernel = ConvolutionSide { batch: 0, feature: 1, spatial: vec![2, 3] };
        let y = convolve(cx, [x, weight], kernel, window)?;
        match self.bias {
            true => with_bias(cx, y, self.out_channels, self.init),
            false => Ok(y),
        }
    }
}

impl Module for ConvTranspose2d {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        check_image(cx, x, self.in_channels)?;
        // PyTorch counts the outputs of a transposed kernel as its inputs.
        let init = Init::KaimingUniform { fan_in: self.out_channels * self.kernel * self.kernel };
        let weight =
            cx.param("weight", &[self.in_channels, self.out_channels, self.kernel, self.kernel], init)?;
        let edge = self.kernel as i64 - 1;
        let window = ConvolutionWindow {
            padding: (edge, edge),
            input_dilation: self.kernel,
            reversed: true,
            ..ConvolutionWindow::default()
        };
        let kernel = ConvolutionSide { batch: 1, feature: 0, spatial: vec![2, 3] };
        let y = convolve(cx, [x, weight], kernel, window)?;
        with_bias(cx, y, self.out_channels, init)
    }
}

/// The largest of each window of an image, as PyTorch's `MaxPool2d`.
#[derive(Clone, Debug)]
pub struct MaxPool2d {
    /// The extent of the window in both directions.
    pub kernel: usize,
    /// The distance of windows.
    pub stride: usize,
    /// Elements around the image that are never the largest.
    pub padding: usize,
}

impl Module for MaxPool2d {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        cx.real(x, "max_pool")?;
        let dtype = cx.builder.ty(x).dtype;
        let least = cx.builder.constant(identity(Combiner::Max, dtype));
        let pad = (self.padding as i64, self.padding as i64);
        let op = ReduceWindow {
            window: vec![1, self.kernel, self.kernel, 1],
            strides: vec![1, self.stride, self.stride, 1],
            base_dilation: vec![1; 4],
            window_dilation: vec![1; 4],
            padding: vec![(0, 0), pad, pad, (0, 0)],
            reducer: Reducer::Combiner(Combiner::Max),
        };
        cx.builder.push1(op, &[x, least])
    }
}

/// Normalises each channel of an image to mean 0 and variance 1 over the whole batch, then scales and shifts it, as
/// PyTorch's `BatchNorm2d` in training. There are no running statistics: those of the batch are used in validation too.
#[derive(Clone, Debug)]
pub struct BatchNorm2d {
    /// Channels.
    pub channels: usize,
    /// Added to the variance.
    pub epsilon: f64,
    /// Initial weight.
    pub init: Init,
}

impl BatchNorm2d {
    /// With an epsilon of 1e-5 and a weight of 1.
    pub fn new(channels: usize) -> BatchNorm2d {
        BatchNorm2d { channels, epsilon: 1e-5, init: Init::Ones }
    }

    /// With this initial weight.
    pub fn init(mut self, init: Init) -> BatchNorm2d {
        self.init = init;
        self
    }
}

/// Normalises groups of channels of each image to mean 0 and variance 1, then scales and shifts each channel, as PyTorch's
/// `GroupNorm`.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    /// Groups; a divisor of the channels.
    pub groups: usize,
    /// Channels.
    pub channels: usize,
    /// Added to the variance.
    pub epsilon: f64,
}

impl GroupNorm {
    /// With an epsilon of 1e-5.
    pub fn new(groups: usize, channels: usize) -> GroupNorm {
        GroupNorm { groups, channels, epsilon: 1e-5 }
    }
}

/// Normalises `x` over `dims` to mean 0 and variance 1, in the accumulation type.
fn normalised(cx: &mut Context, x: ValueId, dims: &[usize], epsilon: f64) -> Result<ValueId> {
    let shape = cx.shape(x);
    let kept: Vec<usize> = (0..shape.len()).filter(|dim| !dims.contains(dim)).collect();
    let signed: Vec<isize> = dims.iter().map(|&dim| dim as isize).collect();
    let mean = cx.mean(x, &signed)?;
    let mean = cx.builder.broadcast_in_dim(mean, &shape, &kept)?;
    let centred = cx.builder.subtract(x, mean)?;
    let squares = cx.builder.multiply(centred, centred)?;
    let variance = cx.mean(squares, &signed)?;
    let variance = cx.builder.offset(variance, epsilon)?;
    let scale = cx.builder.unary(UnaryKind::Rsqrt, variance)?;
    let scale = cx.builder.broadcast_in_dim(scale, &shape, &kept)?;
    cx.builder.multiply(centred, scale)
}

/// Scales and shifts each channel.
fn affine(cx: &mut Context, x: ValueId, channels: usize, init: Init) -> Result<ValueId> {
    let shape = cx.shape(x);
    let weight = cx.param("weight", &[channels], init)?;
    let weight = cx.builder.broadcast_trailing(weight, &shape)?;
    let scaled = cx.builder.multiply(x, weight)?;
    with_bias(cx, scaled, channels, Init::Zeros)
}

impl Module for BatchNorm2d {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        check_image(cx, x, self.channels)?;
        let dtype = cx.builder.ty(x).dtype;
        let wide = cx.builder.convert(x, accumulation_dtype(dtype))?;
        let y = normalised(cx, wide, &[0, 1, 2], self.epsilon)?;
        let y = cx.builder.convert(y, dtype)?;
        affine(cx, y, self.channels, self.init)
    }
}

impl Module for GroupNorm {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        check_image(cx, x, self.channels)?;
        if self.groups == 0 || !self.channels.is_multiple_of(self.groups) {
            return Err(Diagnostic::new("E050", "groups do not divide the channels")
                .at(cx.builder.path.clone())
                .expected(format!("a divisor of {}", self.channels))
                .found(self.groups.to_string()));
        }
        let (shape, dtype) = (cx.shape(x), cx.builder.ty(x).dtype);
        let split = [&shape[..3], &[self.groups, self.channels / self.groups]].concat();
        let grouped = cx.builder.reshape(x, &split)?;
        let wide = cx.builder.convert(grouped, accumulation_dtype(dtype))?;
        let y = normalised(cx, wide, &[1, 2, 4], self.epsilon)?;
        let y = cx.builder.convert(y, dtype)?;
        let y = cx.builder.reshape(y, &shape)?;
        affine(cx, y, self.channels, Init::Ones)
    }
}
