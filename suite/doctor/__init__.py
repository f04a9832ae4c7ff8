"""Report of `make doctor`: one line per component, with its state and the remedy."""
