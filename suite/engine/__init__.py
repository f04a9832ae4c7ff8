"""Training engine: one rank executes a schedule with tensors."""
