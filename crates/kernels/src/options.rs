//! Which machine code kernels may use: vector width (AVX2, AVX-512), just-in-time compilation of chains, AMX, and
//! the instruction that multiplies bf16.
//!
//! CPU features are detected only here, where options are made. Options for what a machine lacks cannot be
//! made, so code that holds a [`KernelOptions`] may run what it names.

use std::fmt;
use std::str::FromStr;

use partita_base::{Diagnostic, Result};

/// The user's choice of kernels: `portable`, `avx2`, `avx512` or `native`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum KernelChoice {
    /// Code for every machine: no wide vectors, no JIT, no AMX. Slow.
    Portable,
    /// 256-bit vectors, and chains compiled for them; the bits of `portable`.
    Avx2,
    /// 512-bit vectors, and chains compiled for them; the bits of `portable`.
    Avx512,
    /// All that the machine has. AMX rounds f32 matmul differently, and matmul of bf16 may take subnormal numbers as zero;
    /// else the bits of `portable`.
    #[default]
    Native,
}

impl KernelChoice {
    /// All choices, the slowest first.
    pub const ALL: [KernelChoice; 4] =
        [KernelChoice::Portable, KernelChoice::Avx2, KernelChoice::Avx512, KernelChoice::Native];

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            KernelChoice::Portable => "portable",
            KernelChoice::Avx2 => "avx2",
            KernelChoice::Avx512 => "avx512",
            KernelChoice::Native => "native",
        }
    }

    /// The choices that this machine can run.
    pub fn available() -> Vec<KernelChoice> {
        Self::of_machine(KernelOptions::native())
    }

    /// The choices that a machine with these options can run.
    fn of_machine(native: KernelOptions) -> Vec<KernelChoice> {
        Self::ALL.into_iter().filter(|choice| choice.options_of(native).is_some()).collect()
    }

    /// The options that this choice means on this machine.
    ///
    /// # Errors
    /// E465 if the machine lacks it.
    pub fn options(self) -> Result<KernelOptions> {
        self.options_on(KernelOptions::native())
    }

    /// [`Self::options`] on a machine that has `native`.
    fn options_on(self, native: KernelOptions) -> Result<KernelOptions> {
        self.options_of(native).ok_or_else(|| {
            Diagnostic::new("E465", format!("this machine cannot run the kernels `{self}`"))
                .expected(names(&Self::of_machine(native)))
                .found(self.name())
                .help("`native`, the default, uses the fastest that this machine supports")
        })
    }

    fn options_of(self, native: KernelOptions) -> Option<KernelOptions> {
        match self {
            KernelChoice::Native => Some(native),
            KernelChoice::Portable => native.at_level(Level::Portable),
            #[cfg(target_arch = "x86_64")]
            KernelChoice::Avx2 => native.at_level(Level::Avx2),
            #[cfg(target_arch = "x86_64")]
            KernelChoice::Avx512 => native.at_level(Level::Avx512),
            #[cfg(not(target_arch = "x86_64"))]
            KernelChoice::Avx2 | KernelChoice::Avx512 => None,
        }
    }
}

fn names(choices: &[KernelChoice]) -> String {
    choices.iter().map(|choice| choice.name()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for KernelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KernelChoice {
    type Err = Box<Diagnostic>;

    /// E466 for an unknown name.
    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|choice| choice.name() == text).ok_or_else(|| {
            Diagnostic::new("E466", format!("there are no kernels named `{text}`"))
                .expected(names(&Self::ALL))
                .found(text)
                .help("`partita env` prints those that this machine can run")
        })
    }
}

/// The instruction set that loops are compiled for; the wide levels have fused multiply-add.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The number of levels.
    pub(crate) const COUNT: usize = 3;
}

/// The machine code that kernels may use. All levels give the same bits, with or without `jit`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KernelOptions {
    level: Level,
    jit: bool,
    matrix_unit: bool,
    bf16_unit: bool,
}

impl Default for KernelOptions {
    fn default() -> Self {
        KernelOptions::native()
    }
}

impl KernelOptions {
    /// Code for every machine.
    pub const fn portable() -> Self {
        KernelOptions { level: Level::Portable, jit: false, matrix_unit: false, bf16_unit: false }
    }

    /// All that this machine has.
    pub fn native() -> Self {
        let level = detected_level();
        KernelOptions {
            level,
            jit: level != Level::Portable,
            matrix_unit: has_matrix_unit(level),
            bf16_unit: has_bf16_unit(level),
        }
    }

    /// The levels of this machine, the narrowest first, each with JIT where it has one, and without AMX.
    pub fn levels() -> Vec<KernelOptions> {
        let choices = KernelChoice::available().into_iter().filter(|&choice| choice != KernelChoice::Native);
        choices.filter_map(|choice| choice.options().ok()).collect()
    }

    /// These options at a level, without AMX and the instruction for bf16; `None` if the machine lacks the level.
    fn at_level(self, level: Level) -> Option<Self> {
        let jit = self.jit && level != Level::Portable;
        (level <= self.level).then_some(KernelOptions { level, jit, matrix_unit: false, bf16_unit: false })
    }

    /// These options without JIT: chains are interpreted, step by step.
    pub fn without_jit(self) -> Self {
        KernelOptions { jit: false, ..self }
    }

    /// These options without AMX.
    pub fn without_matrix_unit(self) -> Self {
        KernelOptions { matrix_unit: false, ..self }
    }

    /// These options without the instruction that multiplies bf16.
    pub fn without_bf16_unit(self) -> Self {
        KernelOptions { bf16_unit: false, ..self }
    }

    /// The name of the vector width: `portable`, `avx2` or `avx512`.
    pub fn level_name(self) -> &'static str {
        match self.level {
            Level::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
        }
    }

    pub(crate) fn level(self) -> Level {
        self.level
    }

    /// Whether chains are compiled to machine code where possible.
    pub fn jit(self) -> bool {
        self.jit
    }

    /// Whether f32 matmul runs on AMX, which rounds differently from a sum in order and is at least as
    /// accurate. All machines with AMX give the same bits.
    pub fn matrix_unit(self) -> bool {
        self.matrix_unit
    }

    /// Whether matmul of bf16 runs on an instruction of its own. It gives the bits of a sum in order, except that it takes
    /// subnormal numbers as zero.
    pub fn bf16_unit(self) -> bool {
        self.bf16_unit
    }
}

/// The widest level of this machine.
fn detected_level() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("fma")
        {
            return Level::Avx512;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Level::Avx2;
        }
    }
    Level::Portable
}

/// Whether this machine has AMX, and the system lets this process use it.
#[cfg(target_arch = "x86_64")]
fn has_matrix_unit(level: Level) -> bool {
    level == Level::Avx512 && crate::native::amx::is_available()
}

#[cfg(not(target_arch = "x86_64"))]
fn has_matrix_unit(_: Level) -> bool {
    false
}

/// Whether this machine multiplies bf16.
#[cfg(target_arch = "x86_64")]
fn has_bf16_unit(level: Level) -> bool {
    level == Level::Avx512 && is_x86_feature_detected!("avx512bf16")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_bf16_unit(_: Level) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_is_read_as_it_is_written_and_no_other() {
        for choice in KernelChoice::ALL {
            assert_eq!(choice.name().parse(), Ok(choice));
        }
        let error = "avx".parse::<KernelChoice>().unwrap_err();
        assert_eq!((error.code, error.expected.as_deref()), ("E466", Some("portable, avx2, avx512, native")));
    }

    #[test]
    fn options_never_reach_beyond_the_machine() {
        let native = KernelOptions::native();
        assert!(native.at_level(native.level()).is_some());
        let portable = KernelOptions::portable();
        assert_eq!(KernelChoice::Portable.options(), Ok(portable));
        assert_eq!((portable.jit(), portable.matrix_unit()), (false, false));
        assert_eq!(KernelOptions::levels()[0], portable);
        assert!(KernelOptions::levels().iter().all(|level| level.level() <= native.level()));
        #[cfg(target_arch = "x86_64")]
        for level in [Level::Avx2, Level::Avx512] {
            assert_eq!(portable.at_level(level), None);
        }
    }

    #[test]
    fn what_a_machine_lacks_is_refused() {
        let portable = KernelOptions::portable();
        assert_eq!(KernelChoice::Native.options_on(portable), Ok(portable));
        for choice in [KernelChoice::Avx2, KernelChoice::Avx512] {
            let error = choice.options_on(portable).unwrap_err();
            let told = (error.code, error.expected.as_deref(), error.found.as_deref());
            assert_eq!(told, ("E465", Some("portable, native"), Some(choice.name())));
        }
    }
}
