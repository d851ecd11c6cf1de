"""A plan in words, tables, figures and JSON."""
