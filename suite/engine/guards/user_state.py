"""State of the user's modules, which the copies of an engine follow before each batch.

Weights, attributes and modes that the user sets reach every copy. An engine refuses changes that it cannot follow,
before the first wrong number: of `requires_grad`, of an attribute that a traced forward has read, and of a weight in a
forward. It refuses a loss with the gradient of a weight that another stage trains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.core.values import format_value
from suite.engine.torch_api.model_layer import ModelLayer, WholeModel

_OF_MODULE = frozenset(vars(nn.Module()))  # attributes of every module: weights, submodules, hooks, the mode
_OF_LAYER = frozenset(("model_part", "names", "structure", "root"))  # attributes of the engine's own layers
_NOTHING = object()


def modules_of(layer: nn.Module) -> Iterator[nn.Module]:
    """The module and its submodules. The model itself stands for a layer that is the whole of it."""
    for module in layer.modules():
        yield module.root[0] if isinstance(module, WholeModel) else module


def attributes_of(module: nn.Module) -> dict[str, Any]:
    """Attributes that the user has set, without tensors that are results of a pass."""
    return {
        name: value
        for name, value in vars(module).items()
        if name not in _OF_MODULE
        and not (isinstance(module, ModelLayer) and name in _OF_LAYER)
        and not is_result(value)
    }


def is_result(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


class Follower:
    """A copy of one of the user's modules, which follows it."""

    def __init__(self, original: nn.Module, copied: nn.Module) -> None:
        self.original, self.copied = original, copied
        self.pairs = list(zip(modules_of(original), modules_of(copied), strict=True))
        self.seen = [attributes_of(module) for module, _ in self.pairs]

    @torch.no_grad()
    def follow(self, *, trained: bool) -> None:
        """Take over modes, changed attributes, buffers and frozen weights; with `trained` the trained weights too."""
        for number, (module, copied) in enumerate(self.pairs):
            copied.training = module.training
            attributes, seen = attributes_of(module), self.seen[number]
            for name, value in attributes.items():
                if seen.get(name, _NOTHING) is not value:
                    vars(copied)[name] = value
            self.seen[number] = attributes
        for own, other in zip(_tensors(self.original), _tensors(self.copied), strict=True):
            takes = trained or not other.requires_grad
            if takes and own.data_ptr() != other.data_ptr() and own.shape == other.shape:
                other.data.copy_(own.data)


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


class UserState:
    """State of the user's modules that an engine compares before each batch, on one rank.

    Args:
        own: Weights of this rank's layers by name: the user's own, and those that passes compute with.
        layers: Layers of this rank.
        traced: Modules whose forwards were traced, by name.
        shared: Buffers of this rank's layers that other stages hold too, by name.
    """

    def __init__(
        self,
        own: Sequence[tuple[str, nn.Parameter]],
        layers: Iterable[nn.Module],
        traced: Mapping[str, nn.Module],
        shared: Sequence[tuple[str, torch.Tensor]] = (),
    ) -> None:
        self.own, self.traced, self.shared = own, traced, shared
        self.modules = [module for layer in layers for module in modules_of(layer)]
        self.trained = [weight.requires_grad for _, weight in own]
        self.attributes = {name: _values(module) for name, module in traced.items()}
        self.results = {(id(m), name) for m in self.modules for name, value in vars(m).items() if is_result(value)}
        self.versions: list[int] = []

    def begin(self) -> None:
        """Compare the modules with those that the engine was made of, before a batch."""
        now = [weight.requires_grad for _, weight in self.own]
        if now != self.trained:
            name = next(n for (n, _), a, b in zip(self.own, now, self.trained, strict=True) if a != b)
            raise InvalidRequest(
                f"requires_grad of the weight {name}, which has changed since the engine was made",
                rule="an engine allocates the states of the weights that are trained when it is made",
                legal="a new engine of the same modules, or a parameter group whose lr is 0 for a time",
            )
        for name, module in self.traced.items():
            values, before = _values(module), self.attributes[name]
            for key in values.keys() | before.keys():
                if not _same(values.get(key, _NOTHING), before.get(key, _NOTHING)):
                    path = f"{name}.{key}".lstrip(".")
                    raise InvalidRequest(
                        f"the attribute {path} of the model, which has changed since the engine was made",
                        rule="the forwards of the model and of modules that hold a split point are traced once",
                        legal=f"a buffer {path} (register_buffer), or the attribute in the forward of a block",
                    )
        self.versions = [tensor._version for _, tensor in (*self.own, *self.shared)]

    def check_update(self) -> None:
        """Compare the modules with those before the passes of a batch.

        Raises InvalidRequest for a weight, or a buffer of several stages, that a forward has written."""
        for (name, tensor), version in zip((*self.own, *self.shared), self.versions, strict=True):
            if tensor._version != version:
                kind = "weight" if isinstance(tensor, nn.Parameter) else "buffer of several stages"
                raise InvalidRequest(
                    f"the {kind} {name}, which a forward writes",
                    rule="each replica, another stage, and a copy in half precision would have another value",
                    legal="a grid of one rank in full precision, such as Grid(); nn.Embedding without max_norm",
                )

    def check_results(self) -> None:
        """Raises InvalidRequest for a result of a pass that a module keeps: a loss on another stage cannot read it."""
        for module in self.modules:
            for name, value in vars(module).items():
                if is_result(value) and (id(module), name) not in self.results:
                    raise InvalidRequest(
                        f"the attribute {name} of a {type(module).__name__}, to which a forward assigns a result",
                        rule="only the tensors that a layer returns reach other stages and the loss",
                        legal="the tensor in the output of the layer, or a grid of one stage",
                    )


def check_graph(loss: torch.Tensor, foreign: Mapping[int, str]) -> None:
    """Raises InvalidRequest for a loss whose graph holds a weight that this rank does not train."""
    waiting, seen = [loss.grad_fn], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        weight = vars(type(node)).get("variable") and node.variable  # type: ignore[attr-defined]
        if weight is not None and id(weight) in foreign:
            raise other_stage(foreign[id(weight)])
        waiting += [following for following, _ in node.next_functions]


def other_stage(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"a loss that reads the weight {name}, which passes of another stage or a half-precision copy train",
        rule="the loss is computed from the outputs of the model, as the last stage holds no other weights",
        legal="weight_decay of the optimizer for a penalty on weights, the value in the output, or a grid of one stage",
    )


def _values(module: nn.Module) -> dict[str, Any]:
    """Attributes of a module, and those of plain objects among them, such as a config."""
    values = attributes_of(module)
    for name, value in list(values.items()):
        if not isinstance(value, torch.Tensor | nn.Module | type | ModuleType):
            with suppress(TypeError):  # most plain values have no attributes
                values |= {f"{name}.{key}": inner for key, inner in vars(value).items()}
    return values


def _same(one: Any, other: Any) -> bool:
    """Whether two values are one object or equal plain values."""
    if one is other:
        return True
    if type(one) is not type(other) or not isinstance(one, bool | int | float | complex | str | bytes | tuple):
        return False
    return bool(one == other) and format_value(one) == format_value(other)
