"""Sparsity-aware full-graph GNN training."""
