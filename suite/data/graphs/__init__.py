"""Graphs: generated without a download, or read from published files.

numpy and scipy only, so that partitioners, volumes and reports can read a graph without torch.
"""

from suite.data.graphs.graph import Graph, operator

__all__ = ["Graph", "operator"]
