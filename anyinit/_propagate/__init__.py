"""The signal followed through the graph as samples, at given scales."""
