"""Statistics over repeats of measurements: one implementation for comparisons, expectations and nightly runs."""
