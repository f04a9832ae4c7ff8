"""Decides what a model costs before it exists: parameters, flops and activation bytes per layer, and its split."""

from suite.workload.convnet import VGG, WideResNet
from suite.workload.shapes import LayerShape, Network, Transformer
from suite.workload.split import by_cost, evenly

__all__ = ["VGG", "LayerShape", "Network", "Transformer", "WideResNet", "by_cost", "evenly"]
