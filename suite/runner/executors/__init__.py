"""Executors that need no ranks, and the classes behind each `executor.kind`."""
