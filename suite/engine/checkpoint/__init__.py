"""Checkpoints of a training run: saving, loading, and files on disk."""
