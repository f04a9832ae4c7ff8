"""Pruning: masks, and the methods that choose them."""
