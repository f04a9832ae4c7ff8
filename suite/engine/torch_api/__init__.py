"""What PyTorch gives and takes: modules, optimizers and state dicts."""
