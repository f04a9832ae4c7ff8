"""Decides what a model costs before it exists: parameters, flops and activation bytes per layer, and its split."""

from suite.workload.shapes import LayerShape, Transformer
from suite.workload.split import by_cost, evenly

__all__ = ["LayerShape", "Transformer", "by_cost", "evenly"]
