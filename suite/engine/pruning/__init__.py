"""Pruning of a network while it trains."""
