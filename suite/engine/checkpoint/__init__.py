"""Checkpoints of a training run: save, storage, restore."""
