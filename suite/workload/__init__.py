"""Workloads: parameters, flops and activation bytes per layer of a network, and its split into stages."""

from suite.workload.language_model import LanguageModel
from suite.workload.recurrent import GNMT, ResidualLSTM
from suite.workload.split import by_cost, evenly
from suite.workload.transformer import LayerShape, Network, Transformer

__all__ = [
    "GNMT",
    "LanguageModel",
    "LayerShape",
    "Network",
    "ResidualLSTM",
    "Transformer",
    "by_cost",
    "evenly",
]
