"""The result of an analysis, weight by weight, and what it notes."""
