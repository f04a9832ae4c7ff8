"""Cost model from operations up: kernels of a transformer layer, collectives and memory of any parallel training."""
