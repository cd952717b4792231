//! Vectors of f32, each by its machine's own type, for chains and for non-temporal stores.

/// Partial results that accumulate side by side within a run of elements.
pub(crate) const LANES: usize = 32;

/// A vector of f32.
pub(crate) trait Vector: Copy {
    const WIDTH: usize;
    /// # Safety
    /// `WIDTH` elements can be read here.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// `WIDTH` elements can be written here.
    unsafe fn store(self, to: *mut f32);
    /// # Safety
    /// `WIDTH` elements can be written here, aligned to the size of the vector.
    unsafe fn stream(self, to: *mut f32);
    fn splat(x: f32) -> Self;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
    fn root(self) -> Self;
}

/// A vector of one element: for the elements that do not fill a vector, and for machines without the types
/// below.
impl Vector for f32 {
    const WIDTH: usize = 1;
    #[inline(always)]
    unsafe fn load(from: *const f32) -> f32 {
        // SAFETY: the caller upholds the contract.
        unsafe { from.read() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller upholds the contract.
        unsafe { to.write(self) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        // SAFETY: the caller upholds the contract.
        unsafe { self.store(to) }
    }
    #[inline(always)]
    fn splat(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn plus(self, other: f32) -> f32 {
        self + other
    }
    #[inline(always)]
    fn minus(self, other: f32) -> f32 {
        self - other
    }
    #[inline(always)]
    fn times(self, other: f32) -> f32 {
        self * other
    }
    #[inline(always)]
    fn over(self, other: f32) -> f32 {
        self / other
    }
    #[inline(always)]
    fn root(self) -> f32 {
        self.sqrt()
    }
}

/// A machine's vector type; its functions are called only where the machine was found to have the
/// instructions.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! vector {
    ($arch:ident, $type:ident, $width:literal: $load:ident $store:ident $stream:ident $splat:ident $add:ident $sub:ident $mul:ident $div:ident $sqrt:ident) => {
        #[allow(unused_unsafe)]
        impl Vector for std::arch::$arch::$type {
            const WIDTH: usize = $width;
            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self {
                // SAFETY: the caller upholds the contract; this code runs only on machines with the
                // instruction, as do all below.
                unsafe { std::arch::$arch::$load(from) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                // SAFETY: the caller upholds the contract.
                unsafe { std::arch::$arch::$store(to, self) }
            }
            #[inline(always)]
            unsafe fn stream(self, to: *mut f32) {
                // SAFETY: the caller upholds the contract.
                unsafe { std::arch::$arch::$stream(to, self) }
            }
            #[inline(always)]
            fn splat(x: f32) -> Self {
                // SAFETY: no memory is touched; the same holds for all below.
                unsafe { std::arch::$arch::$splat(x) }
            }
            vector! { @pairs $arch: plus $add, minus $sub, times $mul, over $div }
            #[inline(always)]
            fn root(self) -> Self {
                // SAFETY: as above.
                unsafe { std::arch::$arch::$sqrt(self) }
            }
        }
    };
    (@pairs $arch:ident: $($name:ident $function:ident),*) => {$(
        #[inline(always)]
        fn $name(self, other: Self) -> Self {
            // SAFETY: as above.
            unsafe { std::arch::$arch::$function(self, other) }
        }
    )*};
}
#[cfg(target_arch = "x86_64")]
vector! { x86_64, __m512, 16: _mm512_loadu_ps _mm512_storeu_ps _mm512_stream_ps _mm512_set1_ps _mm512_add_ps _mm512_sub_ps _mm512_mul_ps _mm512_div_ps _mm512_sqrt_ps }
#[cfg(target_arch = "x86_64")]
vector! { x86_64, __m256, 8: _mm256_loadu_ps _mm256_storeu_ps _mm256_stream_ps _mm256_set1_ps _mm256_add_ps _mm256_sub_ps _mm256_mul_ps _mm256_div_ps _mm256_sqrt_ps }
#[cfg(target_arch = "x86_64")]
vector! { x86_64, __m128, 4: _mm_loadu_ps _mm_storeu_ps _mm_stream_ps _mm_set1_ps _mm_add_ps _mm_sub_ps _mm_mul_ps _mm_div_ps _mm_sqrt_ps }
#[cfg(target_arch = "aarch64")]
vector! { aarch64, float32x4_t, 4: vld1q_f32 vst1q_f32 vst1q_f32 vdupq_n_f32 vaddq_f32 vsubq_f32 vmulq_f32 vdivq_f32 vsqrtq_f32 }
