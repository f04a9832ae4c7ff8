"""Split a model into the layers of an engine.

    nn.Sequential, nn.ModuleList    their entries; not of a subclass with a forward of its own
    any other module                layers that begin at its split points, by default at its blocks
    one that cannot be split        on one stage it is a layer, and its own forward runs

The forward of the model is traced (torch_api.model_tracer) and cut before the call of each split point. Each part is a
layer. It takes the tensors that live over the cut before it, and returns those that live over the next cut, so masks,
positions and skip connections travel with the hidden state. The last layer returns the tensors of the output.

Sizes, dtypes and devices do not travel. A layer computes them from the tensor that they belong to, which travels to the
layer. The submodules and the parameters of the layers are the model's own.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Any

import torch
from torch import fx, nn

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.values import format_value
from suite.engine.callables import binding_error
from suite.engine.layers import Layer
from suite.engine.torch_api.model_layer import LayerPass, ModelLayer, ModelPart, WholeModel, may_write
from suite.engine.torch_api.model_tracer import ModelTrace, hooks_of, is_tensor, trace_model
from suite.engine.torch_api.structure import OutputStructure

_LEGAL_POINTS = 'split_points=["layers.0", "layers.1"] or split_points=["layers.*"]'
_Traces = Mapping[bool, ModelTrace]  # by whether the model trains


@dataclass(frozen=True, slots=True)
class ModelParts:
    """Layers of a model.

    Attributes:
        entries: Names of the layers in their container, such as "0" or "stem"; empty for parts of another module.
        input_names: Arguments of the model's forward that the inputs of a batch hold; None for a list of layers.
        output: Structure of the model's output; None for a list of layers, whose outputs are a tuple.
        weights: Weights of the model in its order, by name; empty for a list of layers.
        unused: Weights and persistent buffers of the model that its forward does not use, by name.
        traced: Modules whose forwards were traced, by name.
        originals: The user's layers, of which `layers` are copies; empty where they are the user's own.
    """

    layers: Sequence[Layer]
    entries: tuple[str, ...] = ()
    input_names: tuple[str, ...] | None = None
    output: OutputStructure | None = None
    weights: Mapping[str, nn.Parameter] = field(default_factory=dict)
    unused: Mapping[str, torch.Tensor] = field(default_factory=dict)
    traced: Mapping[str, nn.Module] = field(default_factory=dict)
    originals: Sequence[Layer] = ()

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The layers; empty where a function makes one, which other ranks do not call."""
        modules = [layer for layer in self.layers if isinstance(layer, nn.Module)]
        return modules if len(modules) == len(self.layers) else ()

    @property
    def names(self) -> frozenset[str]:
        """Names of all weights and buffers; empty where a function makes a layer."""
        own = (self.name_of(number, name) for number, module in enumerate(self.modules) for name in module.state_dict())
        return frozenset((*own, *self.unused))

    def name_of(self, layer: int, name: str) -> str:
        """Name in the whole model of a weight or buffer of a layer. A list of layers has the names of an
        nn.Sequential; parts of a model have the model's own."""
        return f"{self.entries[layer]}.{name}" if self.entries else name


def split_model(model: nn.Module, split_points: Any, input_names: Any) -> ModelParts:
    """The layers of a model.

    Args:
        split_points: Names of the submodules that begin a layer, or patterns such as "layers.*"; None for the entries
            of the largest nn.ModuleList or nn.Sequential that the forward calls in order.
        input_names: Arguments of the model's forward; None for those without a default, or else the first.

    Raises InvalidRequest for a model, split points or names that break the rules above."""
    names = _input_names(model, input_names)
    if split_points is not None:
        points = _named_points(model, split_points)
        traces = _trace(model, names, points)
    else:
        points, traces = _find_blocks(model, names)
    layers = _cut(model, points, traces)
    used = {name for layer in layers for name in layer.state_dict()}
    unused = {name: tensor for name, tensor in model.state_dict().items() if name not in used}
    traced = {name: model.get_submodule(name) for name in _opened(points)}
    return ModelParts(layers, (), names, traces[True].structure, dict(model.named_parameters()), unused, traced)


def is_container(model: object) -> bool:
    """Whether a module only holds its entries: its forward is torch's, without hooks and weights of its own."""
    if not isinstance(model, nn.Sequential | nn.ModuleList) or "forward" in vars(model) or hooks_of(model):
        return False
    plain = type(model).forward in (nn.Sequential.forward, nn.ModuleList.forward)
    return plain and not model._parameters and not model._buffers


def whole_model(model: nn.Module, input_names: Any) -> ModelParts:
    """A model as one layer, whose own forward runs."""
    names = _input_names(model, input_names)
    layer = WholeModel(model, names)
    return ModelParts([layer], (), names, layer.structure, dict(model.named_parameters()))


# -- arguments -------------------------------------------------------------------------------------------------------


def _input_names(model: nn.Module, given: Any) -> tuple[str, ...]:
    """Names of the arguments of the forward that get tensors."""
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {parameter.name: parameter for parameter in parameters if parameter.kind not in kinds}
    required = [name for name, parameter in named.items() if parameter.default is inspect.Parameter.empty]
    chosen = (required or list(named)[:1]) if given is None else given
    is_list = isinstance(chosen, Sequence) and not isinstance(chosen, str)
    valid = is_list and chosen and all(isinstance(name, str) for name in chosen) and len({*chosen}) == len(chosen)
    fault = binding_error(model, **dict.fromkeys(chosen)) if valid else ""
    if not valid or fault:
        raise InvalidRequest(
            f"input_names={format_value(given)} of model={type(model).__name__}(...){fault and f', {fault}'}",
            rule="different names of arguments of forward, with all that have no default; *args has no names",
            legal=f"input_names={required or list(named)[:1] or ['x']} for forward(self, x)",
        )
    return tuple(chosen)


def _named_points(model: nn.Module, split_points: Any) -> list[str]:
    """Names of the modules that `split_points` names or matches, in its order."""
    is_list = isinstance(split_points, Sequence) and not isinstance(split_points, str)
    if not is_list or not split_points or not all(isinstance(point, str) and point for point in split_points):
        rule = "a list of names of submodules, or of patterns that match such names"
        raise InvalidRequest(f"split_points={format_value(split_points)}", rule=rule, legal=_LEGAL_POINTS)
    names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    points: list[str] = []
    for point in split_points:
        matches = [name for name in names if _matches(name, point)]
        if not matches:
            raise UnknownName("split point", point, names)
        points += matches
    return list(dict.fromkeys(points))


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches a name, part by part between the dots."""
    return fnmatchcase(name, pattern) and name.count(".") == pattern.count(".")


# -- trace -----------------------------------------------------------------------------------------------------------


def _trace(model: nn.Module, names: Sequence[str], points: Sequence[str]) -> _Traces:
    """Traces of the model. Raises InvalidRequest unless the forward calls each split point once, in their order."""
    traces = trace_model(model, names, _opened(points))
    for trace in traces.values():
        calls = [str(node.target) for node in trace.nodes if node.op == "call_module" and node.target in points]
        if calls == list(points):
            continue
        raise InvalidRequest(
            f"split_points={list(points)}, of which the forward calls {calls}",
            rule="the forward calls each split point once, in their order and none within another, as a layer has one "
            "place in the pipeline",
            legal=f"split_points={list(dict.fromkeys(calls))}" if calls else _LEGAL_POINTS,
        )
    return traces


def _opened(points: Sequence[str]) -> frozenset[str]:
    """Names of the modules that hold a split point; the model's is empty."""
    parts = [point.split(".") for point in points]
    return frozenset(".".join(part[:count]) for part in parts for count in range(len(part)))


def _find_blocks(model: nn.Module, names: Sequence[str]) -> tuple[list[str], _Traces]:
    """The entries of the largest list of modules that the forward calls in order, and the traces."""
    candidates = [
        (sum(p.numel() for p in module.parameters()), [f"{name}.{entry}".lstrip(".") for entry in children])
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
        if len(children := [entry for entry, _ in module.named_children()]) > 1
    ]
    refusal: InvalidRequest | None = None
    for _, points in sorted(candidates, key=lambda candidate: candidate[0], reverse=True):  # stable: outer ones first
        try:
            return points, _trace(model, names, points)
        except InvalidRequest as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    raise InvalidRequest(
        f"model={type(model).__name__}(...), without blocks",
        rule="a model has an nn.ModuleList or nn.Sequential of at least two blocks, or split_points= name its blocks",
        legal=f"{_LEGAL_POINTS}, or a list of layers",
    )


# -- cut -------------------------------------------------------------------------------------------------------------


def _cut(model: nn.Module, points: Sequence[str], traces: _Traces) -> list[ModelLayer]:
    """The layers. What runs before the first split point is a layer of its own if it uses a module or a weight."""
    before = [node for trace in traces.values() for node in takewhile(lambda n: n.target != points[0], trace.nodes)]
    has_head = any(node.op in ("call_module", "get_attr") for node in before)
    begins = ["the inputs", *points] if has_head else list(points)
    different = {id(trace): trace for trace in traces.values()}
    parts = {key: list(_parts(model, trace, begins)) for key, trace in different.items()}
    tensors = {**traces[False].tensors, **traces[True].tensors}
    layers = []
    for number, begin in enumerate(begins):
        passes = {training: parts[id(trace)][number] for training, trace in traces.items()}
        layers.append(ModelLayer(ModelPart(lambda: model.training, begin, passes), model, tensors))
    return layers


def _parts(model: nn.Module, trace: ModelTrace, begins: Sequence[str]) -> Iterator[LayerPass]:
    """The passes of the layers that begin at the modules `begins`, the first of them at the inputs."""
    part_of, weightless = _assign(trace, begins), _weightless(trace)
    leaving = trace.outputs
    parts: list[LayerPass] = []
    for number in reversed(range(len(begins))):
        body = [node for node in trace.nodes if part_of.get(node) == number]
        used = [source for node in body for source in node.all_input_nodes]
        needed = {origin for node in (*used, *leaving) for origin in _origins(node, part_of)}
        entering = [
            node
            for node in trace.nodes
            if (node.op == "placeholder" and number == 0)
            or (node in needed and node.op != "get_attr" and part_of.get(node) != number)
        ]
        direct = [node for node in trace.nodes if node in needed and node.op == "get_attr"]
        run = fx.GraphModule(model, _graph([*entering, *direct], body, leaving))
        parts.append(
            LayerPass(
                run=run,
                direct=tuple(str(node.target) for node in direct),
                constant=tuple(node in weightless for node in entering),
                produced=tuple(node.name for node in leaving),
                last=number == len(begins) - 1,
                writes=may_write(run),
            )
        )
        leaving = entering
    return reversed(parts)


def _assign(trace: ModelTrace, begins: Sequence[str]) -> dict[fx.Node, int]:
    """The part of each node that computes a tensor. Other values are computed wherever they are used."""
    part_of: dict[fx.Node, int] = {}
    part = 0
    for node in trace.nodes:
        if node.op == "call_module" and node.target in begins[1:]:
            part = begins.index(str(node.target))
        if node.op in ("placeholder", "get_attr") or not is_tensor(node):
            continue
        part_of[node] = part
        if _takes_entry(node) and all(_takes_entry(user) for user in node.all_input_nodes[0].users):
            part_of[node] = part_of.get(node.all_input_nodes[0], part)  # entries of a tuple travel, a tuple cannot
    return part_of


def _takes_entry(node: fx.Node) -> bool:
    """Whether a node reads an entry or a field, as of a tuple, dict or dataclass."""
    return node.target in (operator.getitem, getattr) and isinstance(node.args[1], int | str)


def _origins(node: fx.Node, part_of: Mapping[fx.Node, int]) -> Iterator[fx.Node]:
    """The node if it is a tensor, else the tensors that it is computed from."""
    if node.op in ("placeholder", "get_attr") or node in part_of:
        yield node
    else:
        for source in node.all_input_nodes:
            yield from _origins(source, part_of)


def _weightless(trace: ModelTrace) -> set[fx.Node]:
    """Nodes that no parameter and no module contributes to."""
    nodes: set[fx.Node] = set()
    for node in trace.nodes:
        if node.op not in ("get_attr", "call_module") and nodes.issuperset(node.all_input_nodes):
            nodes.add(node)
    return nodes


def _graph(inputs: Sequence[fx.Node], body: Sequence[fx.Node], leaving: Sequence[fx.Node]) -> fx.Graph:
    """The graph of one part. It computes sizes and the like where it uses them."""
    graph = fx.Graph()
    made = {node: graph.placeholder(node.name) for node in inputs}

    def add(node: fx.Node) -> fx.Node:
        if node not in made:
            for source in node.all_input_nodes:
                add(source)
            made[node] = graph.node_copy(node, made.__getitem__)
        return made[node]

    for node in body:
        add(node)
    graph.output(tuple(map(add, leaving)))
    return graph
