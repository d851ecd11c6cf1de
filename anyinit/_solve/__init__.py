"""The scales at which every use of a weight has what its site wants."""
