"""The jaxpr as one flat list of nodes, every operation in one form."""
