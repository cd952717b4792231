//! How long the gathered parameters of the style `fsdp` are kept.

/// How long a parameter that `fsdp` shards stays gathered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Gather {
    /// One gather for each module, pass (forward, backward) and microbatch; gradients are
    /// reduce-scattered per microbatch. The least memory.
    #[default]
    Use,
    /// One gather for each pass, kept over all microbatches. Gradients are summed over microbatches
    /// unsharded, and reduce-scattered once.
    Pass,
    /// One gather per step, kept from the forward to the backward pass, as with
    /// `reshard_after_forward=False` of PyTorch's `fully_shard`. Gradients as for [`Gather::Pass`].
    Step,
}

impl Gather {
    /// All of them, by name.
    pub(crate) const ALL: [(&'static str, Gather); 3] =
        [("use", Gather::Use), ("pass", Gather::Pass), ("step", Gather::Step)];

    /// As a plan spells it.
    pub(crate) fn name(self) -> &'static str {
        Gather::ALL.iter().find(|(_, gather)| *gather == self).expect("every one has a name").0
    }
}
