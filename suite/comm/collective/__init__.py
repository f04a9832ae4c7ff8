"""Collectives over torch.distributed process groups."""
