//! Random tensors for tests: shapes, values and memory layouts, read by separate index arithmetic.

use half::{bf16, f16};
use partita_base::DType;
use partita_kernels::{View, ViewMut};

/// A small random generator (a 64-bit linear congruence, upper bits).
pub struct Draw(pub u64);

impl Draw {
    pub fn bits(&mut self) -> u64 {
        let mut next = || {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            self.0 >> 32
        };
        next() << 32 | next()
    }
    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() >> 16) as usize % limit
    }
    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
    /// Within [-1, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
    /// Up to four dimensions, sizes from 0 (rarely) up, sometimes large enough for several tiles.
    pub fn shape(&mut self) -> Vec<usize> {
        let rank = self.below(5);
        let mut shape: Vec<usize> = (0..rank).map(|_| self.pick(&[1, 2, 3, 5, 8])).collect();
        if rank > 0 {
            let d = self.below(rank);
            shape[d] = self.pick(&[0, 1, 7, 40, 130, 700, 1500]);
        }
        while shape.iter().product::<usize>() > 6000 {
            let d = self.below(rank);
            shape[d] = 2;
        }
        shape
    }
}

/// Elements in some memory layout.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub dtype: DType,
    memory: Vec<u64>,
    offset: usize,
    pub shape: Vec<usize>,
    strides: Vec<isize>,
}

impl Tensor {
    /// Zeros, row-major.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Self {
        let mut strides = vec![1isize; shape.len()];
        for d in (1..shape.len()).rev() {
            strides[d - 1] = strides[d] * shape[d] as isize;
        }
        let len = shape.iter().product::<usize>();
        Tensor { dtype, memory: vec![0; len + 1], offset: 0, shape: shape.to_vec(), strides }
    }

    /// Zeros in a random order of dimensions, with gaps and reversals.
    pub fn scattered(draw: &mut Draw, dtype: DType, shape: &[usize]) -> Self {
        if draw.chance(3) {
            return Tensor::zeros(dtype, shape);
        }
        let mut order: Vec<usize> = (0..shape.len()).collect();
        if draw.chance(2) {
            for i in (1..order.len()).rev() {
                order.swap(i, draw.below(i + 1));
            }
        }
        let mut strides = vec![0isize; shape.len()];
        let (mut step, mut offset) = (1isize, draw.below(3) as isize);
        for &d in order.iter().rev() {
            strides[d] = step * draw.pick(&[1, 1, 1, 2, 3]);
            step = strides[d] * shape[d].max(1) as isize + draw.pick(&[0, 0, 1]);
            if draw.chance(8) {
                offset += strides[d] * (shape[d].max(1) as isize - 1);
                strides[d] = -strides[d];
            }
        }
        let memory = vec![0; step as usize + offset as usize + 4];
        Tensor { dtype, memory, offset: offset as usize, shape: shape.to_vec(), strides }
    }

    /// Values in a random layout; some dimensions may repeat (stride zero).
    pub fn random(
        draw: &mut Draw,
        dtype: DType,
        shape: &[usize],
        mut value: impl FnMut(&mut Draw) -> f64,
    ) -> Self {
        let mut tensor = Tensor::scattered(draw, dtype, shape);
        for d in 0..shape.len() {
            if draw.chance(6) {
                tensor.strides[d] = 0;
            }
        }
        // Reversed dimensions may have been made to repeat: begin at the first element.
        tensor.offset =
            (0..shape.len()).map(|d| (-tensor.strides[d]).max(0) as usize * shape[d].saturating_sub(1)).sum();
        for i in 0..tensor.len() {
            let x = value(draw);
            tensor.set(i, x);
        }
        tensor
    }

    pub fn of(dtype: DType, shape: &[usize], values: &[f64]) -> Self {
        let mut tensor = Tensor::zeros(dtype, shape);
        assert_eq!(values.len(), tensor.len());
        for (i, &x) in values.iter().enumerate() {
            tensor.set(i, x);
        }
        tensor
    }

    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// The memory position of element `i` in row-major order.
    fn position(&self, mut i: usize) -> usize {
        let mut at = self.offset as isize;
        for d in (0..self.shape.len()).rev() {
            at += (i % self.shape[d]) as isize * self.strides[d];
            i /= self.shape[d];
        }
        at as usize
    }

    fn bytes(&self, i: usize) -> &[u8] {
        let size = self.dtype.size_bytes();
        &bytemuck::cast_slice::<u64, u8>(&self.memory)[self.position(i) * size..][..size]
    }

    pub fn bits(&self, i: usize) -> u64 {
        let mut wide = [0; 8];
        let bytes = self.bytes(i);
        wide[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(wide)
    }

    pub fn set_bits(&mut self, i: usize, bits: u64) {
        let size = self.dtype.size_bytes();
        let at = self.position(i) * size;
        bytemuck::cast_slice_mut::<u64, u8>(&mut self.memory)[at..at + size]
            .copy_from_slice(&bits.to_le_bytes()[..size]);
    }

    pub fn int(&self, i: usize) -> i128 {
        int_of_bits(self.dtype, self.bits(i))
    }

    pub fn get(&self, i: usize) -> f64 {
        let bits = self.bits(i);
        match self.dtype {
            DType::F16 => f16::from_bits(bits as u16).to_f64(),
            DType::BF16 => bf16::from_bits(bits as u16).to_f64(),
            DType::F32 => f64::from(f32::from_bits(bits as u32)),
            DType::F64 => f64::from_bits(bits),
            _ => self.int(i) as f64,
        }
    }

    /// Rounds to the element type; integers truncate and wrap.
    pub fn set(&mut self, i: usize, x: f64) {
        self.set_bits(i, bits_of(self.dtype, x));
    }

    pub fn values(&self) -> Vec<f64> {
        (0..self.len()).map(|i| self.get(i)).collect()
    }

    pub fn all_bits(&self) -> Vec<u64> {
        (0..self.len()).map(|i| self.bits(i)).collect()
    }

    pub fn view(&self) -> View<'_> {
        let bytes = bytemuck::cast_slice(&self.memory);
        View::strided(bytes, self.offset, self.dtype, &self.shape, &self.strides)
    }

    pub fn view_mut(&mut self) -> ViewMut<'_> {
        let bytes = bytemuck::cast_slice_mut(&mut self.memory);
        ViewMut::strided(bytes, self.offset, self.dtype, &self.shape, &self.strides)
    }
}

/// The f16 or bf16 nearest to `x`, ties to even, given a guess that may be off by one.
fn nearest_half(x: f64, guess: u16, infinity: u16, value: impl Fn(u16) -> f64) -> u64 {
    if !x.is_finite() || x == 0.0 {
        return u64::from(guess);
    }
    let (sign, magnitude) = (guess & 0x8000, guess & 0x7fff);
    // For rounding, infinity counts as one step above the largest number.
    let step_above = 2.0 * value(infinity - 1) - value(infinity - 2);
    let distance = |bits: u16| ((if bits == infinity { step_above } else { value(bits) }) - x.abs()).abs();
    let candidates = magnitude.saturating_sub(1)..=(magnitude + 1).min(infinity);
    let best = candidates.min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
    u64::from(sign | best.expect("a guess has neighbors"))
}

pub fn bits_of(dtype: DType, x: f64) -> u64 {
    match dtype {
        DType::Bool => u64::from(x != 0.0),
        DType::F16 => {
            nearest_half(x, f16::from_f64(x).to_bits(), 0x7c00, |bits| f16::from_bits(bits).to_f64())
        }
        DType::BF16 => {
            nearest_half(x, bf16::from_f64(x).to_bits(), 0x7f80, |bits| bf16::from_bits(bits).to_f64())
        }
        DType::F32 => u64::from((x as f32).to_bits()),
        DType::F64 => x.to_bits(),
        _ => truncate(dtype, x as i128 as u64),
    }
}

/// Truncates to the low bits that a type holds.
pub fn truncate(dtype: DType, bits: u64) -> u64 {
    match dtype.size_bytes() {
        8 => bits,
        size => bits & ((1 << (8 * size)) - 1),
    }
}

pub fn int_of_bits(dtype: DType, bits: u64) -> i128 {
    let shift = 64 - 8 * dtype.size_bytes() as u32;
    if dtype.is_signed_integer() { i128::from((bits << shift) as i64 >> shift) } else { i128::from(bits) }
}

/// The relative spacing of a float type.
pub fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 9.8e-4,
        DType::BF16 => 7.9e-3,
        DType::F32 => 1.2e-7,
        _ => 2.3e-16,
    }
}

/// Whether two floats agree within `ulps` spacings of their type, or absolutely below `floor`.
#[track_caller]
pub fn assert_close(dtype: DType, found: f64, right: f64, ulps: f64, floor: f64, what: &str) {
    // The exact value rounded to the type: may overflow, or become subnormal.
    let one = Tensor::of(dtype, &[], &[right]);
    let rounded = one.get(0);
    if found == rounded || found == right || (found.is_nan() && right.is_nan()) {
        return;
    }
    // Below the smallest normal number the spacing is constant.
    let smallest = if dtype == DType::F16 { 6.2e-5 } else { 1.2e-38 };
    let tolerance = ulps * epsilon(dtype) * right.abs().max(floor).max(smallest);
    assert!((found - right).abs() <= tolerance, "{what} ({dtype}): {found:e}, not {right:e}");
}

pub const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
pub const INTEGERS: [DType; 8] =
    [DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64];

/// Floats of every kind: ordinary, tiny, huge and special.
pub fn any_float(draw: &mut Draw) -> f64 {
    match draw.below(12) {
        0 => draw.pick(&[0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN]),
        1 => draw.unit() * 1e-6,
        2 => draw.unit() * 300.0,
        3 => f64::from((draw.unit() * 6.0).round() as i32),
        _ => draw.unit() * 4.0,
    }
}
