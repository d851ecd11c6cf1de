"""What each value of a graph is: known, noise, a weight, a signal, the weights of an average."""
