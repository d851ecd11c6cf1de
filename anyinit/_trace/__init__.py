"""A model's forward pass as a jaxpr, and what is known of its parameters."""
