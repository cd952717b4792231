//! SIMD vectors of floats as matmul uses them. This is the portable version: plain arrays, which the compiler
//! turns into vectors of the machine. The versions for AVX2 and AVX-512 are in `native/lanes.rs`.

/// Work that is compiled for the instruction set of one lane type.
pub(crate) trait Job {
    /// Runs the work. Implementations and everything that they call, down to the intrinsics, are
    /// `#[inline(always)]`.
    ///
    /// # Safety
    /// The contract of the job; and the machine has the instructions of the lanes that it uses.
    unsafe fn run(self);
}

/// A vector of floats, and the register tile (rows by vectors) that suits its instruction set.
///
/// # Safety
/// The machine has the instructions that the methods use; pointers may be unaligned and must cover the lanes
/// that are read or written.
pub(crate) trait Lanes: Copy {
    /// One lane.
    type Element: Copy;
    /// Zero.
    const ZERO: Self::Element;
    /// One.
    const ONE: Self::Element;
    /// The number of lanes, at most 16.
    const COUNT: usize;
    /// Rows of the register tile, at most 6.
    const ROWS: usize;
    /// Vectors per row of the register tile, at most 4.
    const VECTORS: usize;
    /// The same value in all lanes.
    unsafe fn splat(value: Self::Element) -> Self;
    unsafe fn load(from: *const Self::Element) -> Self;
    unsafe fn store(self, to: *mut Self::Element);
    /// Loads `count <= COUNT` lanes; the others are zero.
    unsafe fn load_first(from: *const Self::Element, count: usize) -> Self;
    /// Stores `count <= COUNT` lanes.
    unsafe fn store_first(self, to: *mut Self::Element, count: usize);
    /// `self * other`
    unsafe fn times(self, other: Self) -> Self;
    /// `self * other + addend`, rounded once.
    unsafe fn times_plus(self, other: Self, addend: Self) -> Self;
    /// Interleaves the lanes of two vectors: `a0 b0 a1 b1 ..`, as first half and second half.
    unsafe fn zip(self, other: Self) -> [Self; 2];
    /// Prefetches a cache line that will be written.
    unsafe fn prefetch(at: *const Self::Element);
    /// Runs a job in a function compiled for these instructions.
    unsafe fn compiled(job: impl Job);
}

macro_rules! plain_lanes {
    ($element:ty, $count:literal) => {
        impl Lanes for [$element; $count] {
            type Element = $element;
            const ZERO: $element = 0.0;
            const ONE: $element = 1.0;
            const COUNT: usize = $count;
            const ROWS: usize = 4;
            const VECTORS: usize = 3;
            #[inline(always)]
            unsafe fn splat(value: $element) -> Self {
                [value; $count]
            }
            #[inline(always)]
            unsafe fn load(from: *const $element) -> Self {
                // SAFETY: the caller guarantees the lanes.
                unsafe { from.cast::<Self>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $element) {
                // SAFETY: as above.
                unsafe { to.cast::<Self>().write_unaligned(self) }
            }
            #[inline(always)]
            unsafe fn load_first(from: *const $element, count: usize) -> Self {
                // SAFETY: as above.
                std::array::from_fn(|i| if i < count { unsafe { from.add(i).read() } } else { 0.0 })
            }
            #[inline(always)]
            unsafe fn store_first(self, to: *mut $element, count: usize) {
                for (i, lane) in self.into_iter().enumerate().take(count) {
                    // SAFETY: as above.
                    unsafe { to.add(i).write(lane) }
                }
            }
            #[inline(always)]
            unsafe fn times(self, other: Self) -> Self {
                std::array::from_fn(|i| self[i] * other[i])
            }
            #[inline(always)]
            unsafe fn times_plus(self, other: Self, addend: Self) -> Self {
                std::array::from_fn(|i| self[i].mul_add(other[i], addend[i]))
            }
            #[inline(always)]
            unsafe fn zip(self, other: Self) -> [Self; 2] {
                [0, $count / 2].map(|half| {
                    std::array::from_fn(|i| if i % 2 == 0 { self[half + i / 2] } else { other[half + i / 2] })
                })
            }
            #[inline(always)]
            unsafe fn prefetch(_: *const $element) {}
            #[inline(never)]
            unsafe fn compiled(job: impl Job) {
                // SAFETY: the caller upholds the contract.
                unsafe { job.run() }
            }
        }
    };
}
plain_lanes!(f32, 8);
plain_lanes!(f64, 4);
