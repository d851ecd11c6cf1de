"""How an error in the signal's scale grows from layer to layer."""
