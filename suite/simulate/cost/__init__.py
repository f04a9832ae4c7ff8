"""Cost models: seconds of an op, from a trace or from kernels."""
