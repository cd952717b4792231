//! How many devices a model needs.
