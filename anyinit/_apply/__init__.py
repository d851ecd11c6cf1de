"""A plan applied: scaled parameters and their learning rates."""
