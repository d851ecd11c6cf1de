"""Flax models, linen and nnx: how each is called for a trace, and the analysis of it."""
