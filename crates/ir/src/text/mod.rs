//! StableHLO text.
