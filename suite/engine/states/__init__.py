"""Tensors of model states: flat layout, compression, offload to the host."""
