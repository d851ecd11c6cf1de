"""What each TensorFlow operator is in JAX: one file a family."""
