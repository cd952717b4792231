//! Initial values of whole parameters, quickly: the numbers of [`Init::values`] to the last bit, drawn on all cores
//! straight to where they live.
//!
//! Nearly all the time of a normal draw is the inverse of the error function. A Taylor series around the middle of one of
//! many segments gives it to within `ERROR`; where both ends of that interval round to the same element, that is the
//! element, and only where they do not is the function itself asked. f64 always asks.

use crate::context::ParamSpec;
use crate::init::{Cut, Init, symmetric};
use crate::random::key;
use partita_ir::literal::Rounded;
use partita_ir::ops::UnaryKind;
use partita_ir::{Literal, Storage, with_storage};
use std::f64::consts::{FRAC_2_SQRT_PI, SQRT_2};
use std::num::NonZero;
use std::ops::Range;
use std::thread;

/// The inverse of the error function near `center`: coefficients of the powers of the distance from it.
#[repr(align(64))]
struct Segment {
    center: f64,
    coefficients: [f64; 6],
}

/// Segments are even pieces of the octaves of `1 - |x|`, of which draws of 24 bits reach as many.
const OCTAVES: usize = 24;
/// Pieces of an octave: a power of two.
const PIECES: usize = 64;
/// Bound on the series' error, four times the largest there is.
const ERROR: f64 = 1.0 / (1u64 << 42) as f64;
/// Elements drawn at a time: they stay in the cache until every copy is written.
const BLOCK: usize = 4096;

/// Draws the initial values of parameters.
pub struct Initializer {
    seed: u64,
    segments: Vec<Segment>,
}

impl Initializer {
    /// For the parameters of a model that starts with this seed.
    pub fn new(seed: u64) -> Initializer {
        let segment = |index: usize| {
            let octave = 0.5f64.powi((OCTAVES - index / PIECES) as i32);
            let center = 1.0 - octave * (1.0 + ((index % PIECES) as f64 + 0.5) / PIECES as f64);
            let y = UnaryKind::ErfInv.of_float(center);
            // With u the first derivative, the others are u^n P(y): P becomes P' + 2 n y P.
            let (u, s) = ((y * y).exp() / FRAC_2_SQRT_PI, y * y);
            let coefficients = [
                y,
                u,
                u.powi(2) * y,
                u.powi(3) * (2.0 + 8.0 * s) / 6.0,
                u.powi(4) * y * (28.0 + 48.0 * s) / 24.0,
                u.powi(5) * (28.0 + s * (368.0 + s * 384.0)) / 120.0,
            ];
            Segment { center, coefficients }
        };
        Initializer { seed, segments: (0..OCTAVES * PIECES).map(segment).collect() }
    }

    /// Writes the box of `extent` at `offset` of a parameter's initial value into every target, as dense row-major bytes.
    ///
    /// # Panics
    /// Where a target has another size.
    pub fn fill(&self, spec: &ParamSpec, offset: &[usize], extent: &[usize], targets: Vec<&mut [u8]>) {
        let cut = Cut { shape: &spec.ty.shape, offset, extent };
        let (count, size) = (cut.element_count(), spec.ty.dtype.size_bytes());
        targets.iter().for_each(|target| assert_eq!(target.len(), count * size, "bytes of {}", spec.ty));
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let workers = cores.min(count.div_ceil(16 * BLOCK)).max(1);
        let share = count.div_ceil(workers);
        thread::scope(|scope| {
            let mut rest = targets;
            for worker in 0..workers {
                let range = worker * share..count.min((worker + 1) * share);
                let (mine, others) =
                    rest.into_iter().map(|target| target.split_at_mut(range.len() * size)).unzip();
                rest = others;
                let work = move || self.fill_part(spec, cut, range, mine);
                if worker + 1 < workers {
                    scope.spawn(work);
                } else {
                    work();
                }
            }
        });
    }

    /// Elements `range` of a box, block by block.
    fn fill_part(&self, spec: &ParamSpec, cut: Cut, range: Range<usize>, mut targets: Vec<&mut [u8]>) {
        let (key, size) = (key(self.seed, spec.stream), spec.ty.dtype.size_bytes());
        let mut block = Storage::zeros(spec.ty.dtype, BLOCK.min(range.len()));
        for start in range.clone().step_by(BLOCK) {
            let elements = start..range.end.min(start + BLOCK);
            let mut filled = 0;
            for run in cut.runs(elements.clone()) {
                let length = (run.end - run.start) as usize;
                with_storage!(&mut block, v => self.draw(spec.init, key, run, &mut v[filled..filled + length]));
                filled += length;
            }
            let at = (start - range.start) * size;
            for target in &mut targets {
                target[at..at + elements.len() * size]
                    .copy_from_slice(&block.bytes()[..elements.len() * size]);
            }
        }
    }

    /// The elements at positions `run` of a tensor whose stream has this key.
    fn draw<T: Rounded>(&self, init: Init, key: u64, run: Range<u64>, elements: &mut [T]) {
        let draws = run.map(|index| symmetric(key, index));
        match init {
            Init::Normal { std } => {
                let of_draw = |x| self.normal(x, SQRT_2 * std).unwrap_or_else(|| T::rounded(init.of_draw(x)));
                elements.iter_mut().zip(draws).for_each(|(element, x)| *element = of_draw(x));
            }
            Init::Uniform { .. } | Init::KaimingUniform { .. } => {
                elements
                    .iter_mut()
                    .zip(draws)
                    .for_each(|(element, x)| *element = T::rounded(init.of_draw(x)));
            }
            Init::Zeros | Init::Ones | Init::Constant(_) => elements.fill(T::rounded(init.of_draw(0.0))),
        }
    }

    /// The element nearest to the inverse error function of `x` times `scale`, where the series tells.
    fn normal<T: Rounded>(&self, x: f64, scale: f64) -> Option<T> {
        let y = self.inverse_error_function(x.abs());
        let element = |y: f64| T::rounded(y.copysign(x) * scale);
        let (low, high) = (element(y - ERROR), element(y + ERROR));
        (low == high).then_some(low)
    }

    /// To within [`ERROR`], for `x` in [0, 1 - 2^-24].
    fn inverse_error_function(&self, x: f64) -> f64 {
        // The bits of exponent and leading mantissa count the segments.
        let position = (1.0 - x).to_bits() >> (52 - PIECES.ilog2());
        let first = (0x3FF - OCTAVES as u64) << PIECES.ilog2();
        // 1 itself would open another octave; the last segment reaches it.
        let Segment { center, coefficients: [a, b, c, d, e, f] } =
            &self.segments[((position - first) as usize).min(OCTAVES * PIECES - 1)];
        let h = x - center;
        a + h * (b + h * (c + h * (d + h * (e + h * f))))
    }

    /// The box of `extent` at `offset` of a parameter's initial value.
    pub fn literal(&self, spec: &ParamSpec, offset: &[usize], extent: &[usize]) -> Literal {
        let ty = spec.ty.with_shape(extent);
        let mut bytes = vec![0; ty.bytes()];
        self.fill(spec, offset, extent, vec![&mut bytes]);
        Literal::from_bytes(&ty, &bytes).expect("the bytes fill the shape")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_base::DType;
    use partita_ir::TensorType;

    #[test]
    fn the_series_is_within_its_bound_at_the_ends_of_every_segment() {
        let initializer = Initializer::new(0);
        let grid = 0.5f64.powi(24);
        for (index, segment) in initializer.segments.iter().enumerate() {
            let half = 0.5f64.powi((OCTAVES - index / PIECES) as i32) / (2 * PIECES) as f64;
            for x in [segment.center - 0.999 * half, segment.center, segment.center + 0.999 * half] {
                if !(0.0..=1.0 - grid).contains(&x) {
                    continue;
                }
                let error = initializer.inverse_error_function(x) - UnaryKind::ErfInv.of_float(x);
                assert!(error.abs() <= ERROR / 4.0, "{x}: {error:e}");
            }
        }
    }

    #[test]
    fn what_is_filled_is_what_the_values_round_to() {
        let shape = [37, 1201];
        let inits = [
            Init::Normal { std: 0.02 },
            Init::Normal { std: 1.0 },
            Init::KaimingUniform { fan_in: 7 },
            Init::Constant(0.1),
        ];
        for init in inits {
            for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
                let spec = ParamSpec { ty: TensorType::new(dtype, shape), init, stream: 5 };
                for (offset, extent) in [([0, 0], shape), ([3, 200], [30, 999]), ([36, 1200], [1, 1])] {
                    let exact = init.values(11, 5, &shape, &offset, &extent);
                    let expected = Literal::from_f64(&spec.ty.with_shape(extent), exact.into_iter());
                    let mut copies = vec![vec![0; expected.ty.bytes()]; 2];
                    let targets = copies.iter_mut().map(Vec::as_mut_slice).collect();
                    Initializer::new(11).fill(&spec, &offset, &extent, targets);
                    assert!(copies.iter().all(|copy| copy == expected.bytes()), "{init:?} {dtype}");
                }
            }
        }
        let empty = ParamSpec { ty: TensorType::new(DType::F32, [0, 3]), init: inits[0], stream: 5 };
        assert_eq!(empty.initial(0).data.len(), 0);
    }
}
