"""Training with sparse layers inside AxoNN's engine, as in SAMO V-B.

Each pruned linear layer is replaced by a sparse layer right after its weights are initialized. The engine therefore
trains a smaller dense model, whose states, messages and reductions hold the kept values only. Biases, norms, embeddings
and the language head stay dense. The mask equals the mask that axonn_samo draws from the same config. A mask that
depends on training, or on more than one layer, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from baselines.sputnik import UNTRIED
from baselines.sputnik.linear import SparseLinear, kernels_of
from suite import accelerator
from suite.config.run import RunConfig
from suite.core.errors import Broken, Unsupported, refuse
from suite.core.protocols import MaskMethod, Missing, Ready, Value, World
from suite.core.units import si
from suite.engine.checkpoint.restore import Loaded
from suite.engine.makers import Maker
from suite.engine.system import EngineSystem
from suite.pruning.mask import Key, View, describe_weight, prunable
from suite.runner.estimate import counts

WIDENED = "16-bit weight gradients are sampled in float32: torch has no 16-bit kernel for it on a CPU"


class Sputnik(EngineSystem):
    """AxoNN with sparse weights and sparse kernels.

    Raises Unsupported for convolutions, and in the cases of `check`.
    """

    @classmethod
    def probe(cls, config: RunConfig) -> Ready | Missing:
        check(config)
        if config.launch.device == "cuda" and find_spec("triton") is None:
            return Missing("sparse products on CUDA are Triton kernels; pip install triton")
        return super().probe(config)

    def __init__(self, world: World, config: RunConfig) -> None:
        self.pruning_settings, self.flops = config.pruning, counts(config)
        super().__init__(world, config)

    @classmethod
    def engine_arguments(cls, config: RunConfig) -> dict[str, Any]:
        """Arguments of the engine without pruning: layers are pruned when they are made, and the engine trains dense
        values."""
        return super().engine_arguments(config) | {"pruning": None}

    @classmethod
    def layer_makers(cls, config: RunConfig, shape: Any) -> Sequence[Maker]:
        """The model's own layers, each pruned after it is made."""
        layer_makers, plugin = super().layer_makers(config, shape), config.pruning.ticket
        assert plugin is not None, "a run without a mask is refused"
        method, sparsity = plugin.build(), config.pruning.sparsity
        draw = partial(method_draw, method, sparsity=sparsity, seed=config.seed, layers=len(layer_makers))
        return [partial(sparse, make, number, draw) for number, make in enumerate(layer_makers)]

    @property
    def sparse_layers(self) -> list[SparseLinear]:
        return [module for module in self.engine.state.stage.layers.modules() if isinstance(module, SparseLinear)]

    def facts(self) -> dict[str, Any]:
        """Facts of the engine, the sparsity, and notes on the kernels and on the counted flops."""
        device = torch.device(self.engine.state.comm.world.device)
        on_host = accelerator.on_host(device)
        widened = [WIDENED] if on_host and self.engine.state.settings.half else []
        untried = [UNTRIED] if on_host else []
        useful, dense = (si(self.flops[name], "flop") for name in ("useful_flops_per_batch", "flops_per_batch"))
        counted = f"a batch is {useful} of kept weights, and {dense} by dense products, as percent of peak counts it"
        notes = [f"sparse products: {kernels_of(device).NAME}", *widened, *untried, counted]
        return {**super().facts(), "sparsity": self.pruning_settings.sparsity, "notes": notes}

    def memory(self, batch: Value) -> tuple[float, dict[str, int]]:
        """Bytes of the engine, and the bytes of the indices."""
        loss, bytes_by_kind = super().memory(batch)
        return loss, {"indices": sum(layer.structure.bytes for layer in self.sparse_layers), **bytes_by_kind}

    def load(self, path: str | Path) -> Loaded:
        loaded = super().load(path)
        for layer in self.sparse_layers:
            layer.structure.weight.refresh()
            layer.structure.transposed.refresh()
        return loaded


def check(config: RunConfig) -> None:
    """Raise Unsupported for an unsuitable mask or memory layout.

    The mask must be drawn layer by layer before training, and the layout must be that of sparse layers.
    """
    refuse(_rules(config), Unsupported)


def _rules(config: RunConfig) -> Iterator[Broken]:
    pruning, named = config.pruning, "system=sputnik with"
    what, rule = f"{named} pruning={pruning.name}", "sparse layers need a pruning mask"
    yield not pruning.ticket, what, rule, "pruning=magnitude"
    assert pruning.ticket
    method = pruning.ticket.build()
    rule = "the mask is drawn before the first batch; pruning=saved reads a mask that an earlier run has drawn"
    yield not method.draws_after(0), what, rule, "pruning=saved"
    rule = "only weight matrices have sparse kernels; biases, norms and embeddings stay dense"
    yield pruning.scope != "weights", f"{named} pruning.scope={pruning.scope}", rule, "pruning.scope=weights"
    rule = "each layer is pruned when it is built, so no threshold over all layers is known"
    yield method.scope != "layer", f"{named} pruning.ticket.scope={method.scope}", rule, "layer"
    rule = "sparse layers store the states of kept weights only, in device memory"
    yield config.memory.name != "sparse", f"{named} memory={config.memory.name}", rule, "memory=sparse"


def method_draw(
    method: MaskMethod, number: int, layer: nn.Module, *, sparsity: float, seed: int, layers: int
) -> dict[Key, torch.Tensor]:
    """Mask of one layer.

    It equals this layer's part of the mask of the whole model, because the method prunes each weight independently.
    """
    keys = [(number, name) for name in prunable(layer, "weights")]  # may be empty; `draw` still checks a saved mask
    for key in keys:
        check_linear(layer, key)
    view = View(
        layers=[(number, layer)],
        weight=lambda key: layer.get_parameter(key[1]).detach(),
        keys=keys,
        sparsity=sparsity,
        seed=seed,
        total=float,
        stage=number,  # each layer as a stage of its own
        stages=layers,
    )
    indices = method.draw(view)
    assert indices is not None, "a method that draws before the first batch returns a mask"
    return dict(indices)


def sparse(
    make: Callable[[], nn.Module], number: int, draw: Callable[[int, nn.Module], Mapping[Key, torch.Tensor]]
) -> nn.Module:
    """Layer of `make` with its pruned linear layers made sparse. Raises Unsupported for any other pruned weight."""
    layer = make()
    for key, index in draw(number, layer).items():
        linear = check_linear(layer, key)
        path = key[1].rpartition(".")[0]
        if not path:
            return SparseLinear(linear, index)
        parent, _, name = path.rpartition(".")
        setattr(layer.get_submodule(parent), name, SparseLinear(linear, index))
    return layer


def check_linear(layer: nn.Module, key: Key) -> nn.Linear:
    """Linear layer whose weight `key` names. Raises Unsupported for any other layer."""
    path, _, name = key[1].rpartition(".")
    module = layer.get_submodule(path)
    if not isinstance(module, nn.Linear) or name != "weight":
        kind = "convolution" if "Conv" in type(module).__name__ else f"kernel for a {type(module).__name__}"
        rule = f"Sputnik has no sparse {kind} (SAMO V-B)"
        raise Unsupported(f"system=sputnik with {describe_weight(key)}", rule=rule, legal="system=axonn_samo")
    return module
