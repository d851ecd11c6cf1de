"""What each ATen operator is in JAX: one file a family."""
