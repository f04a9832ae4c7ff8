"""Microbenchmarks of single operations: messages and all-reduces, by each backend."""
