"""Workloads: parameters, flops and activation bytes per layer of a network, and its split into stages."""

from suite.workload.alexnet import AlexNet
from suite.workload.convnet import VGG, ResNet, WideResNet
from suite.workload.inception import GoogLeNet, InceptionV3
from suite.workload.language_model import LanguageModel
from suite.workload.recurrent import GNMT, ResidualLSTM
from suite.workload.split import by_cost, evenly
from suite.workload.transformer import LayerShape, Network, Transformer

__all__ = [
    "GNMT",
    "VGG",
    "AlexNet",
    "GoogLeNet",
    "InceptionV3",
    "LanguageModel",
    "LayerShape",
    "Network",
    "ResNet",
    "ResidualLSTM",
    "Transformer",
    "WideResNet",
    "by_cost",
    "evenly",
]
