//! Vectors of AVX-512 and AVX2 for matmul, each with the register tile (rows by vectors) that suits it.

use std::arch::x86_64::*;
pub(crate) use std::arch::x86_64::{__m256, __m256d, __m512, __m512d};

use crate::gemm::lanes::{Job, Lanes};

macro_rules! lanes {
    (
        $vector:ident of $count:literal $element:ident, $rows:literal by $vectors:literal, $features:literal,
        $splat:ident, $load:ident, $store:ident, $times:ident, $times_plus:ident,
        |$from:ident, $left:ident| $load_first:expr,
        |$to:ident, $right:ident, $value:ident| $store_first:expr,
        |$a:ident, $b:ident| $zip:expr
    ) => {
        impl Lanes for $vector {
            type Element = $element;
            const ZERO: $element = 0.0;
            const ONE: $element = 1.0;
            const COUNT: usize = $count;
            const ROWS: usize = $rows;
            const VECTORS: usize = $vectors;
            #[inline(always)]
            unsafe fn splat(value: $element) -> Self {
                // SAFETY: the caller guarantees the instructions.
                unsafe { $splat(value) }
            }
            #[inline(always)]
            unsafe fn load(from: *const $element) -> Self {
                // SAFETY: the caller guarantees the instructions and the lanes behind the pointer.
                unsafe { $load(from) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $element) {
                // SAFETY: the caller guarantees the instructions and the lanes behind the pointer.
                unsafe { $store(to, self) }
            }
            #[inline(always)]
            unsafe fn load_first($from: *const $element, $left: usize) -> Self {
                // SAFETY: the caller guarantees the instructions and the lanes behind the pointer.
                unsafe { $load_first }
            }
            #[inline(always)]
            unsafe fn store_first(self, $to: *mut $element, $right: usize) {
                let $value = self;
                // SAFETY: the caller guarantees the instructions and the lanes behind the pointer.
                unsafe { $store_first }
            }
            #[inline(always)]
            unsafe fn times(self, other: Self) -> Self {
                // SAFETY: the caller guarantees the instructions.
                unsafe { $times(self, other) }
            }
            #[inline(always)]
            unsafe fn times_plus(self, other: Self, addend: Self) -> Self {
                // SAFETY: the caller guarantees the instructions.
                unsafe { $times_plus(self, other, addend) }
            }
            #[inline(always)]
            unsafe fn zip(self, $b: Self) -> [Self; 2] {
                let $a = self;
                // SAFETY: the caller guarantees the instructions.
                unsafe { $zip }
            }
            #[inline(always)]
            unsafe fn prefetch(at: *const $element) {
                // SAFETY: the caller guarantees the instructions; a prefetch fails at no address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
            }
            #[inline(always)]
            unsafe fn compiled(job: impl Job) {
                #[target_feature(enable = $features)]
                #[inline(never)]
                unsafe fn compiled(job: impl Job) {
                    // SAFETY: the caller guarantees the instructions and the job's contract.
                    unsafe { job.run() }
                }
                // SAFETY: the caller guarantees the instructions and the job's contract.
                unsafe { compiled(job) }
            }
        }
    };
}

/// A mask of the first `count` lanes, up to 16.
#[inline(always)]
fn mask(count: usize) -> u16 {
    ((1u32 << count) - 1) as u16
}

lanes!(
    __m512 of 16 f32, 6 by 4, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma",
    _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_mul_ps, _mm512_fmadd_ps,
    |from, count| _mm512_maskz_loadu_ps(mask(count), from),
    |to, count, vector| _mm512_mask_storeu_ps(to, mask(count), vector),
    |a, b| {
        let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        [_mm512_permutex2var_ps(a, low, b), _mm512_permutex2var_ps(a, high, b)]
    }
);
lanes!(
    __m512d of 8 f64, 6 by 4, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma",
    _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_mul_pd, _mm512_fmadd_pd,
    |from, count| _mm512_maskz_loadu_pd(mask(count) as u8, from),
    |to, count, vector| _mm512_mask_storeu_pd(to, mask(count) as u8, vector),
    |a, b| {
        let low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
        let high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
        [_mm512_permutex2var_pd(a, low, b), _mm512_permutex2var_pd(a, high, b)]
    }
);
// A tile of AVX2 leaves four of the 16 registers free. Three vectors per row would need all 16; compilers
// then spill sums to memory, which doubles the time.
lanes!(
    __m256 of 8 f32, 6 by 2, "avx2,fma",
    _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_mul_ps, _mm256_fmadd_ps,
    |from, count| {
        let index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), index))
    },
    |to, count, vector| {
        let index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_maskstore_ps(to, _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), index), vector)
    },
    |a, b| {
        let (even, odd) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        [_mm256_permute2f128_ps::<0x20>(even, odd), _mm256_permute2f128_ps::<0x31>(even, odd)]
    }
);
lanes!(
    __m256d of 4 f64, 6 by 2, "avx2,fma",
    _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_mul_pd, _mm256_fmadd_pd,
    |from, count| {
        let index = _mm256_setr_epi64x(0, 1, 2, 3);
        _mm256_maskload_pd(from, _mm256_cmpgt_epi64(_mm256_set1_epi64x(count as i64), index))
    },
    |to, count, vector| {
        let index = _mm256_setr_epi64x(0, 1, 2, 3);
        _mm256_maskstore_pd(to, _mm256_cmpgt_epi64(_mm256_set1_epi64x(count as i64), index), vector)
    },
    |a, b| {
        let (even, odd) = (_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
        [_mm256_permute2f128_pd::<0x20>(even, odd), _mm256_permute2f128_pd::<0x31>(even, odd)]
    }
);
