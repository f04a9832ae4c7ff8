"""Decides which graphs a network learns from: generated ones, without a download, and published ones from files.

numpy and scipy only, so that partitioners, volumes and reports can read a graph without torch.
"""

from suite.data.graphs.graph import Graph, operator

__all__ = ["Graph", "operator"]
