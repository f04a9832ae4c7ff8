"""Layers that are parts of a model, between two cuts of its traced forward (engine.torch_api.split_model)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter

import torch
from torch import fx, nn

from suite.core.errors import InvalidRequest
from suite.core.protocols import Value
from suite.engine.torch_api.structure import OutputStructure, flatten


@dataclass(frozen=True, slots=True)
class LayerPass:
    """Forward pass of a layer in one mode.

    Attributes:
        run: Function of the travelling tensors, followed by the tensors `direct`. It returns a tuple.
        direct: Names of parameters and buffers that are used without a call of their module.
        constant: For each travelling tensor, whether it is computed without weights, so needs no gradient.
        produced: Names of the outputs, for errors.
        last: Whether the outputs are those of the model.
        writes: Whether the part may write to the tensors that it takes.
    """

    run: fx.GraphModule
    direct: tuple[str, ...]
    constant: tuple[bool, ...]
    produced: tuple[str, ...]
    last: bool
    writes: bool


@dataclass(frozen=True, slots=True)
class ModelPart:
    """Part of a model between two cuts.

    Attributes:
        trains: Whether the model trains; a function, which a copy of a layer shares with its original.
        begins: Name of the module whose call begins the part.
        passes: Forward passes by whether the model trains.
    """

    trains: Callable[[], bool]
    begins: str
    passes: dict[bool, LayerPass]


class ModelLayer(nn.Module):
    """Part of a model between two cuts: a function of the tensors that live over the first.

    The entries of a tuple that lives over a cut travel one by one. The shape of a last tensor, which has no elements,
    holds the number of entries of each value.

    Submodules, parameters and buffers have the names that they have in the model.

    Attributes:
        model_part: The part. One attribute, as each is a name that no submodule of the model may have.
    """

    def __init__(self, part: ModelPart, model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.model_part, passes, saved = part, part.passes.values(), model.state_dict().keys()
        calls = [str(node.target) for each in passes for node in each.run.graph.nodes if node.op == "call_module"]
        for name in calls:
            _attach(self, name, model.get_submodule(name))
        for name in dict.fromkeys(name for each in passes for name in each.direct):
            _attach(self, name, tensors[name], persistent=name in saved)

    def forward(self, *values: torch.Tensor) -> Value:
        part = self.model_part.passes[self.training and self.model_part.trains()]
        lengths = (0,) * len(part.constant)  # of tuples; 0 for a tensor
        if len(values) > len(lengths):
            *values, marker = values  # type: ignore[assignment]
            lengths = marker.shape[1:]
        # an input of a stage requires a gradient, which would select other kernels than within a stage
        each = (constant for constant, length in zip(part.constant, lengths, strict=True) for _ in range(length or 1))
        tensors = [value.detach() if constant else value for value, constant in zip(values, each, strict=True)]
        if part.writes:  # a leaf may be an input of the stage, which the layers before this one have passed on
            tensors = [value.clone() if value.is_leaf else value for value in tensors]
        entries = iter(tensors)
        inputs = [tuple(islice(entries, length)) if length else next(entries) for length in lengths]
        outputs = part.run(*inputs, *(attrgetter(name)(self) for name in part.direct))
        return self._flat(part, outputs)

    def _flat(self, part: LayerPass, outputs: Value) -> Value:
        """The outputs with the entries of tuples one by one. Raises InvalidRequest for values that cannot travel."""
        flat: list[torch.Tensor] = []
        lengths = []
        for name, value in zip(part.produced, outputs, strict=True):
            entries = value if type(value) is tuple and not part.last else (value,)
            if not entries or not all(isinstance(entry, torch.Tensor) for entry in entries):
                raise InvalidRequest(
                    f"{name}, a {type(value).__name__} that leaves the layer at {self.model_part.begins!r}",
                    rule="values between layers are tensors or tuples of tensors, and those of the output are tensors",
                    legal="split_points= elsewhere, or a module that returns the tensors that later code uses",
                )
            flat += entries
            lengths.append(len(entries) if entries is value else 0)
        return (*flat, flat[0].new_empty((0, *lengths), dtype=torch.uint8)) if any(lengths) else tuple(flat)


class WholeModel(nn.Module):
    """A model as one layer: a function of the tensors of its inputs that returns those of its output.

    Submodules, parameters and buffers are the model's, under their names.
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.names, self.structure = tuple(names), OutputStructure(None)
        self.root = (model,)  # in a tuple, as an attribute would be one more submodule
        for kind in ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules"):
            vars(self)[kind] = vars(model)[kind]

    def forward(self, *values: torch.Tensor) -> Value:
        (model,) = self.root
        trains, leaves = model.training, list[torch.Tensor]()
        model.training = trains and self.training
        try:
            output = model(**dict(zip(self.names, values, strict=True)))
        finally:
            model.training = trains
        self.structure.become(flatten(output, leaves))
        return tuple(leaves)


def _attach(layer: nn.Module, path: str, value: nn.Module | torch.Tensor, *, persistent: bool = False) -> None:
    """Register a module or a tensor of the model under its path in the model; a `persistent` buffer is saved."""
    *parents, name = path.split(".")
    for parent in parents:
        if parent not in dict(layer.named_children()):
            layer.add_module(parent, nn.Module())
        layer = layer.get_submodule(parent)
    if isinstance(value, nn.Module):
        layer.add_module(name, value)
    elif name in {**vars(layer), **dict(layer.named_parameters(recurse=False)), **dict(layer.named_buffers())}:
        return  # the model's own module holds it
    elif isinstance(value, nn.Parameter):
        layer.register_parameter(name, value)
    else:
        layer.register_buffer(name, value, persistent=persistent)


def may_write(run: fx.GraphModule) -> bool:
    """Whether a graph may have an operation in place: one whose name says so, or a module that is declared so."""
    for node in run.graph.nodes:
        name = node.target if isinstance(node.target, str) else node.target.__name__
        if node.op == "call_module":
            if any(vars(module).get("inplace") for module in run.get_submodule(name).modules()):
                return True
        elif node.op.startswith("call_"):
            of_operator = not isinstance(node.target, str) and node.target.__module__ == "_operator"
            if name.endswith("_") or node.kwargs.get("inplace") or (of_operator and name.startswith(("i", "setitem"))):
                return True
    return False
