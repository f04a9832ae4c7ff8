"""Keys of the trained network: model, data, precision, pruning, memory layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from suite.config.base import Choice, Count, Name, Settings, Share
from suite.config.plugins import Plugin
from suite.config.protocols import LossScale
from suite.core.protocols import DataSource, MaskMethod
from suite.memory.layout import Layout
from suite.workload.gcn import GCN
from suite.workload.transformer import Network


class Model(Choice):
    """A network: its shape for counts, and the module that makes its layers. A module may read further keys."""

    model_config = ConfigDict(extra="allow")

    network: Annotated[Name, Field(examples=["suite.models.gpt"])]
    """Module with `layers(shape, ...)`, `loss` and, where layers share weights, `ties(shape)`."""
    dropout: Share = 0.0
    """Share of the activations that dropout sets to zero."""
    dtype: Literal["float64", "float32", "float16", "bfloat16"] = "float32"
    """Type of the weights."""
    shape: Plugin[Network | GCN]
    """Sizes of the network, from which parameters, flops and bytes follow."""


class KernelForms(Settings):
    """Forms of layers, losses and steps that give the same results up to rounding."""

    compile: Literal["none", "block"] = "none"
    """block: torch.compile runs each layer that checkpoints count; none: layers run as written."""
    accumulate: Literal["autograd", "in_place"] = "autograd"
    """in_place: products of a backward pass add to the gradients of weights; autograd: sums follow products."""
    loss_chunk: Count | None = None
    """Rows of outputs whose loss is computed in single precision at a time; null: all."""
    fused: bool = False
    """Whether one kernel makes a whole optimizer step on a GPU: the engine's in mixed precision, or torch's."""


class DataConfig(Choice):
    """Data that the network learns from."""

    folder: Name | None
    """Folder of a published data set; null: the data are made or come with Python."""
    source: Plugin[DataSource]
    """Reader of the batches."""


class Precision(Choice):
    """Number formats of a training."""

    half: Literal["auto", "bfloat16", "float16"] | None = None
    """Type of passes, messages and reductions in mixed precision: bfloat16, float16 or auto; null: full precision."""
    loss_scale: Plugin[LossScale] | None = None
    """Dynamic loss scale; null: 1."""


class PruningConfig(Choice):
    """Weights that are removed, and the method that selects them."""

    sparsity: Annotated[Share, Field(examples=[0.9])] = 0.0
    """Fraction of the prunable weights that is removed."""
    scope: Literal["weights", "all"] = "weights"
    """weights: weights of linear layers and convolutions; all: also biases, norms and embeddings."""
    searches: bool = False
    """The method searches for its mask during training, so memory is predicted for dense states."""
    ticket: Plugin[MaskMethod] | None = None
    """How the mask is drawn; null: nothing is pruned."""


class MemoryConfig(Choice):
    """Form and place of the model states."""

    layout: Plugin[Callable[..., Layout]]
    """Layout of each weight's states."""
