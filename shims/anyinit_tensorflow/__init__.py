"""TensorFlow graphs in JAX, for the TensorFlow backend of ``anyinit.keras``."""

from anyinit_tensorflow._replay import replay as replay
