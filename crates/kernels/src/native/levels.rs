//! Function multiversioning: a loop is compiled for AVX-512, for AVX2 and for the baseline, and each call
//! runs the version that [`KernelOptions`](crate::options::KernelOptions) select.
//!
//! Rust neither contracts `a * b + c` into one rounding nor reorders float sums, and `mul_add` rounds once on
//! every machine, so the three versions give the same bits: results do not depend on the machine, except for
//! matmul on AMX.

use super::vector::Vector;

/// The [`Level`](crate::options::Level) that code is compiled for, as a type: for functions that choose
/// instructions themselves.
pub(crate) trait Machine {
    type Vector: Vector;
}

macro_rules! machines {
    ($($name:ident: $vector:ty),*) => {$(
        pub(crate) struct $name;
        impl Machine for $name {
            type Vector = $vector;
        }
    )*};
}
#[cfg(target_arch = "x86_64")]
machines! { Baseline: std::arch::x86_64::__m128, Avx2: std::arch::x86_64::__m256, Avx512: std::arch::x86_64::__m512 }
#[cfg(target_arch = "aarch64")]
machines! { Baseline: std::arch::aarch64::float32x4_t }
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
machines! { Baseline: f32 }

/// Defines a generic function whose body is compiled once per [`Level`](crate::options::Level) and dispatched
/// at the call. Everything that the body calls must be `#[inline(always)]` to be compiled along with it. A
/// type after a semicolon limits this to common element types; the others use the baseline, which saves
/// compile time. A name after the function's name is the body's name for its [`Machine`].
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident$(($M:ident))?[$($g:ident : $bound:path),* $(; $common:ident)?]($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::extra_unused_type_parameters)]
        $vis fn $name<$($g: $bound),*>(options: $crate::options::KernelOptions, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<$($M: $crate::native::levels::Machine,)? $($g: $bound),*>($($arg: $ty),*) $(-> $ret)? $body
            // Compiled once, not inlined into every caller.
            #[inline(never)]
            fn baseline<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? {
                $(type $M = $crate::native::levels::Baseline;)?
                body::<$($M,)? $($g),*>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn avx512<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? {
                $(type $M = $crate::native::levels::Avx512;)?
                body::<$($M,)? $($g),*>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2<$($g: $bound),*>($($arg: $ty),*) $(-> $ret)? {
                $(type $M = $crate::native::levels::Avx2;)?
                body::<$($M,)? $($g),*>($($arg),*)
            }
            if const { false $(|| !$common::COMMON)? } {
                return baseline::<$($g),*>($($arg),*);
            }
            match options.level() {
                // SAFETY: options exist only for what this machine has.
                #[cfg(target_arch = "x86_64")]
                $crate::options::Level::Avx512 => unsafe { avx512::<$($g),*>($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::options::Level::Avx2 => unsafe { avx2::<$($g),*>($($arg),*) },
                $crate::options::Level::Portable => baseline::<$($g),*>($($arg),*),
            }
        }
    };
}
pub(crate) use multiversion;
