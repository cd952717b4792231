//! Fast initial values of whole parameters: bitwise equal to [`Init::values`], drawn on all cores
//! directly into their buffers.
//!
//! A normal draw would spend nearly all its time in the inverse error function. [`InverseErf`]
//! gives it within an error bound. If both ends of that interval round to the same element, that is
//! the element; otherwise the exact function decides. f64 always uses the exact function.

use crate::context::ParamSpec;
use crate::init::{Cut, Init, symmetric};
use crate::random::key;
use partita_base::Result;
use partita_ir::literal::Rounded;
use partita_ir::{Literal, Storage, with_storage};
use partita_kernels::{InverseErf, KernelOptions, symmetric_draws};
use std::f64::consts::SQRT_2;
use std::num::NonZero;
use std::ops::Range;
use std::thread;

/// Elements drawn at a time: they stay in L1 until every copy is written.
const BLOCK: usize = 4096;
/// Draws made at a time.
const DRAWS: usize = 256;

/// Draws the initial values of parameters.
pub struct Initializer {
    seed: u64,
    inverse: InverseErf,
    options: KernelOptions,
}

impl Initializer {
    /// Draws for the parameters of a model with this seed. The numbers do not depend on the options.
    pub fn new(options: KernelOptions, seed: u64) -> Initializer {
        Initializer { seed, inverse: InverseErf::new(), options }
    }

    /// Writes the box of `extent` at `offset` of a parameter's initial value into every target, as
    /// dense row-major bytes.
    ///
    /// # Errors
    /// E350 if its values are in a file that has changed.
    ///
    /// # Panics
    /// If a target has another size.
    pub fn fill(
        &self,
        spec: &ParamSpec,
        offset: &[usize],
        extent: &[usize],
        targets: Vec<&mut [u8]>,
    ) -> Result<()> {
        let cut = Cut { shape: &spec.ty.shape, offset, extent };
        let (count, size) = (cut.element_count(), spec.ty.dtype.size_bytes());
        targets.iter().for_each(|target| assert_eq!(target.len(), count * size, "bytes of {}", spec.ty));
        if let Some(stored) = &spec.stored {
            let values = stored.window(offset, extent)?;
            targets.into_iter().for_each(|target| target.copy_from_slice(&values.bytes()));
            return Ok(());
        }
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
        Ok(())
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
        if let Init::Zeros | Init::Ones | Init::Constant(_) = init {
            elements.fill(T::rounded(init.of_draw(0.0)));
            return;
        }
        let mut draws = [0.0; DRAWS];
        for (first, elements) in run.step_by(DRAWS).zip(elements.chunks_mut(DRAWS)) {
            let draws = &mut draws[..elements.len()];
            symmetric_draws(self.options, key, first, draws);
            if let Init::Normal { std } = init {
                self.inverse.apply(self.options, draws);
                round_normal(draws, SQRT_2 * std, elements, |i| {
                    T::rounded(init.of_draw(symmetric(key, first + i as u64)))
                });
            } else {
                elements.iter_mut().zip(draws).for_each(|(e, x)| *e = T::rounded(init.of_draw(*x)));
            }
        }
    }

    /// The box of `extent` at `offset` of a parameter's initial value.
    ///
    /// # Errors
    /// As [`Initializer::fill`].
    pub fn literal(&self, spec: &ParamSpec, offset: &[usize], extent: &[usize]) -> Result<Literal> {
        let ty = spec.ty.with_shape(extent);
        Literal::written(&ty, |bytes| self.fill(spec, offset, extent, vec![bytes]))
    }
}

/// The elements nearest to `scale` times values known to within [`InverseErf::ERROR`]; `exact`
/// decides those that the interval leaves open.
fn round_normal<T: Rounded>(values: &[f64], scale: f64, elements: &mut [T], exact: impl Fn(usize) -> T) {
    let ends = |y: f64| {
        let (relative, absolute) = InverseErf::ERROR;
        let error = y.abs() * relative + absolute;
        (T::rounded((y - error) * scale), T::rounded((y + error) * scale))
    };
    let mut are_sure = true;
    for (element, &y) in elements.iter_mut().zip(values) {
        let (low, high) = ends(y);
        *element = low;
        are_sure &= low == high;
    }
    if are_sure {
        return;
    }
    for (i, (element, &y)) in elements.iter_mut().zip(values).enumerate() {
        let (low, high) = ends(y);
        if low != high {
            *element = exact(i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_base::DType;
    use partita_ir::TensorType;

    #[test]
    fn what_is_filled_is_what_the_values_round_to() {
        let shape = [37, 1201];
        let inits = [
            Init::Normal { std: 0.02 },
            Init::Normal { std: 1.0 },
            Init::Normal { std: 0.0 },
            Init::Uniform { bound: 0.3 },
            Init::KaimingUniform { fan_in: 7 },
            Init::Zeros,
            Init::Ones,
            Init::Constant(0.1),
        ];
        // Whole tensors, rows of full draw blocks and one more or less, single elements.
        let boxes = [
            ([0, 0], shape),
            ([3, 200], [30, 999]),
            ([36, 1200], [1, 1]),
            ([5, 1], [3, DRAWS - 1]),
            ([5, 1], [3, DRAWS]),
            ([5, 1], [3, DRAWS + 1]),
            ([0, 7], [2, 2 * DRAWS + 63]),
            ([0, 7], [37, 9]),
        ];
        for init in inits {
            for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
                let spec = ParamSpec { ty: TensorType::new(dtype, shape), init, stream: 5, stored: None };
                for (offset, extent) in boxes {
                    let exact = init.values(11, 5, &shape, &offset, &extent);
                    let expected = Literal::from_f64(&spec.ty.with_shape(extent), exact.into_iter());
                    for options in KernelOptions::levels() {
                        let mut copies = vec![vec![0; expected.ty.bytes()]; 2];
                        let targets = copies.iter_mut().map(Vec::as_mut_slice).collect();
                        Initializer::new(options, 11).fill(&spec, &offset, &extent, targets).unwrap();
                        assert!(
                            copies.iter().all(|copy| copy[..] == *expected.bytes()),
                            "{init:?} {dtype} {options:?}"
                        );
                    }
                }
            }
        }
        let empty =
            ParamSpec { ty: TensorType::new(DType::F32, [0, 3]), init: inits[0], stream: 5, stored: None };
        assert_eq!(empty.initial(0).unwrap().data.len(), 0);
        let values = Literal::from_f64(&TensorType::new(DType::F32, [2, 3]), (0..6).map(f64::from));
        let kept = ParamSpec::stored("kept", values.ty.clone(), values);
        assert_eq!(kept.initial_shard(0, &[1, 1], &[1, 2]).unwrap().to_f64(), [4.0, 5.0]);
    }
}
