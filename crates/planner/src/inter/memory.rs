//! How many stages may follow a stage before its saved activations exceed the memory of a device.

/// The memory of a stage on one of its devices, in bytes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Memory {
    /// What a device has.
    pub available: f64,
    /// The most in use while the stage works on one microbatch, without its parameters and states.
    pub peak: f64,
    /// Parameters and optimizer states.
    pub initial: f64,
    /// The activations that are kept from the forward to the backward pass of one microbatch.
    pub intermediate: f64,
}

/// The most successors that are counted.
const MOST: f64 = 4096.0;

/// The most stages that may follow a stage: with k of them it holds the activations of k + 1 microbatches under 1F1B. -1 if
/// not even one microbatch fits.
pub fn most_successors(memory: &Memory) -> i64 {
    let Memory { available, peak, initial, intermediate } = *memory;
    let held = (available - peak - initial) / intermediate.max(1e-8);
    (held - 1.0).floor().clamp(-1.0, MOST) as i64
}
