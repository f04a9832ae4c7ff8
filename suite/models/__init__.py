"""Networks as lists of layers, so that a pipeline can split them anywhere."""
