"""Modules of one stage: the user's own, or copies that share what can be shared.

The list may hold modules, or functions that make them; of functions each rank calls its own stage's only, with the same
random numbers on every split. A tied weight is two leaves, one at each end, with one gradient: summed at the update,
input part first. So the ends may stand on any two stages, and one stage adds in the same order as several.

The user's modules train in place. Two cases need a copy of a module: a layer whose weight an earlier layer of this
stage holds too (a second leaf), and mixed precision (passes compute in half precision). A copy shares every other
tensor with its original, and new values are written back, so the user's modules always hold the trained weights."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from suite.comm.p2p.polling import wait_until
from suite.core.errors import InvalidRequest
from suite.core.protocols import Group
from suite.core.values import shown
from suite.engine.random_state import drawing, initial, undisturbed

if TYPE_CHECKING:
    from suite.engine.states.state import ModelState

Layer = nn.Module | Callable[[], nn.Module]
Tie = tuple[int, str, int, str]  # first layer, name of its weight, last layer, name
_DIMENSIONS = 8  # of a tied weight that are compared


@dataclass
class Copies:
    """The copies of one stage, each with its original.

    Attributes:
        layers: (original, copy).
        weights: (original, leaf) of every parameter in mixed precision, the first leaf where a tie has two on this
            stage.
        lent: By the leaf's id, the data that `lend` has given to the original.
    """

    layers: list[tuple[nn.Module, nn.Module]] = field(default_factory=list)
    weights: list[tuple[nn.Parameter, nn.Parameter]] = field(default_factory=list)
    lent: dict[int, torch.Tensor] = field(default_factory=dict)

    def follow_modes(self) -> None:
        """Give every module inside a copy the mode (training or evaluation) of its original."""
        for original, copied in self.layers:
            modes = {name: module.training for name, module in original.named_modules()}
            for name, module in copied.named_modules():
                module.training = modes.get(name, module.training)

    def lend(self, state: ModelState) -> None:
        """Let the user's weights be the full-precision ones of mixed precision: views, so nothing is allocated. Of a
        pruned weight there is no whole full-precision form: the user's is the half copy. Once lent, a weight that
        another engine has taken over since stays with that engine."""
        again = bool(self.lent)
        for original, leaf in self.weights:
            if id(leaf) not in state.flat.at or (again and not self._lends(original, leaf)):
                continue
            if id(leaf) in state.pruned:
                original.data = leaf.data
            else:
                original.data = state.whole(state.rule.weights[0], leaf)
            self.lent[id(leaf)] = original.data

    def give_back(self, state: ModelState) -> None:
        """Let the user's weights be full-precision ones on the device, whatever the layout, unless another engine has
        taken them over."""
        for original, leaf in self.weights:
            if self._lends(original, leaf):
                original.data = state.whole(state.rule.weights[0], leaf).to(state.device)
        self.lent.clear()

    def _lends(self, original: nn.Parameter, leaf: nn.Parameter) -> bool:
        """Whether the user's weight is still the data that this engine has lent."""
        lent = self.lent.get(id(leaf))
        return lent is not None and lent.data_ptr() == original.data_ptr()

    @torch.no_grad()
    def write_buffers(self) -> None:
        """Write buffers that passes have changed (running statistics) to the originals."""
        for original, copied in self.layers:
            copied_buffers = dict(copied.named_buffers())
            for name, buffer in original.named_buffers():
                _write(buffer, copied_buffers.get(name, buffer))

    @torch.no_grad()
    def write_frozen(self) -> None:
        """Write frozen weights that a load has changed to the originals."""
        for original, leaf in self.weights:
            if not leaf.requires_grad:
                _write(original.data, leaf.data)


def _write(original: torch.Tensor, changed: torch.Tensor) -> None:
    """Write `changed` to `original`, whose full precision stays wherever `changed` is its rounding."""
    if changed is original or changed.data_ptr() == original.data_ptr() or changed.shape != original.shape:
        return
    if changed.dtype == original.dtype:
        original.copy_(changed)
    else:
        original.copy_(torch.where(original.to(changed.dtype) == changed, original, changed.to(original.dtype)))


def make(
    layers: Sequence[Layer],
    own: range,
    seed: int,
    *,
    device: torch.device | str = "cpu",
    half: torch.dtype | None = None,
) -> tuple[list[nn.Module], Copies]:
    """The modules of the layers `own` on `device`, and the modules among them that are copies of the user's.

    Raises InvalidRequest for what makes no module, and for a weight that functions share (it would be one on some
    splits and two on others)."""
    layer_list: list[nn.Module] = []
    copies = Copies()
    leaves: dict[int, nn.Parameter] = {}  # the first leaf of each of the user's weights that has a leaf of its own
    seen: dict[int, int] = {}  # the layer that a parameter stands in
    for number in own:
        layer = layers[number]
        if isinstance(layer, nn.Module):
            layer.to(device)
            again = {id(parameter) for parameter in layer.parameters()} & seen.keys()
            floating = any(t.is_floating_point() for t in (*layer.parameters(), *layer.buffers()))
            module = _copied(layer, number, again, half, copies, leaves) if again or (half and floating) else layer
            seen |= dict.fromkeys(map(id, layer.parameters()), number)
        else:
            with undisturbed(), drawing(*initial(seed, number)):
                module = _called(layer, number).to(device)
            for name, parameter in module.named_parameters():
                if id(parameter) in seen:
                    raise InvalidRequest(
                        f"weight {name} of layer {number}, which is a weight of layer {seen[id(parameter)]} too",
                        rule="functions make layers of their own, as each rank calls those of its stage only",
                        legal="modules in the list, or tied=[(first layer, name, last layer, name)]",
                    )
            seen |= dict.fromkeys(map(id, module.parameters()), number)
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if is_lazy(tensor):
                raise InvalidRequest(
                    f"weight {name} of layer {number}, which has no shape yet",
                    rule="weights have shapes before an engine is made",
                    legal="a module through which a sample has gone, or nn.Linear for nn.LazyLinear",
                )
        layer_list.append(module)
    return layer_list, copies


def _called(function: Callable[[], nn.Module], number: int) -> nn.Module:
    """The module that `function` makes."""
    legal = "a module (nn.Tanh()), or a function that makes one (lambda: nn.Linear(8, 8))"
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin, such as torch.relu, computes
        signature = inspect.Signature([inspect.Parameter("input", inspect.Parameter.POSITIONAL_ONLY)])
    try:
        signature.bind()
    except TypeError as error:
        what = f"layer {number}, {shown(function)}, called without arguments: {error}"
        raise InvalidRequest(
            what, rule="a function in layers= takes no arguments and makes a module", legal=legal
        ) from error
    module = function()
    if not isinstance(module, nn.Module):
        what = f"layer {number}, {shown(function)}, which makes a {type(module).__name__}"
        raise InvalidRequest(what, rule="a function in layers= makes a module", legal=legal)
    return module


def _copied(
    layer: nn.Module,
    number: int,
    again: set[int],
    half: torch.dtype | None,
    copies: Copies,
    leaves: dict[int, nn.Parameter],
) -> nn.Module:
    """A copy of `layer` with leaves of its own for the weights `again`, in mixed precision for all. A leaf of mixed
    precision begins as an alias: the model states take the numbers over. Everything else that is a tensor is shared,
    but for buffers that become half copies."""
    memo: dict[int, torch.Tensor] = {}
    weights: list[tuple[nn.Parameter, nn.Parameter]] = []
    for parameter in layer.parameters():
        memo[id(parameter)] = parameter
        if half is not None or id(parameter) in again:
            leaf = _leaf(parameter, parameter.data if half is not None else parameter.data.clone())
            memo[id(parameter)] = leaf
            if half is not None and id(parameter) not in leaves:
                leaves[id(parameter)] = leaf
                weights.append((parameter, leaf))
    for buffer in layer.buffers():
        if half is None or not buffer.is_floating_point():
            memo[id(buffer)] = buffer
    try:
        layer_copy: nn.Module = copy.deepcopy(layer, memo)
    except Exception as error:
        why = "half= computes in half copies" if half is not None else "a tied weight of one stage is two leaves"
        raise InvalidRequest(
            f"layer {number}, {type(layer).__name__}, which copy.deepcopy cannot copy: {error}",
            rule=f"{why}, so the module is copied",
            legal="a function that makes the layer",
        ) from error
    copies.layers.append((layer, layer_copy))
    copies.weights.extend(weights)
    return layer_copy


def _leaf(parameter: nn.Parameter, data: torch.Tensor) -> nn.Parameter:
    """Another leaf that begins as `parameter`, with its hooks."""
    leaf = nn.Parameter(data, requires_grad=parameter.requires_grad)
    for hook in (parameter._backward_hooks or {}).values():
        leaf.register_hook(hook)
    for hook in (parameter._post_accumulate_grad_hooks or {}).values():
        leaf.register_post_accumulate_grad_hook(hook)
    return leaf


def find_ties(layers: Sequence[Layer], named: Sequence[Tie], split: Sequence[range]) -> list[Tie]:
    """The named ties, and weights that two modules of the list share.

    Raises InvalidRequest unless they join first and last, and where both ends are here, are alike."""
    ties: dict[Tie, None] = dict.fromkeys((first, name, last, other) for first, name, last, other in named)
    seen: dict[int, tuple[int, str]] = {}
    for number, layer in enumerate(layers):
        if isinstance(layer, nn.Module):
            for name, parameter in layer.named_parameters():
                if id(parameter) in seen and seen[id(parameter)][0] != number:
                    ties[(*seen[id(parameter)], number, name)] = None  # once, if it is also named
                seen[id(parameter)] = (number, name)
    for first, _, last, _ in ties:
        if (first, last) != (0, len(layers) - 1):
            raise InvalidRequest(
                f"a tie of layers {first} and {last} of {len(layers)}",
                rule="ties join the first layer and the last, which the first and the last stage hold",
                legal=f"layers 0 and {len(layers) - 1}",
            )
    _check_statistics(layers, split)
    return list(ties)


def _check_statistics(layers: Sequence[Layer], split: Sequence[range]) -> None:
    """Raises InvalidRequest for running statistics that two stages would each keep."""
    at: dict[int, int] = {}  # the stage of a module
    for stage, stage_layers in enumerate(split):
        for layer in (layers[number] for number in stage_layers):
            for module in layer.modules() if isinstance(layer, nn.Module) else ():
                if not isinstance(module, _NormBase) or module.running_mean is None:
                    continue
                if at.setdefault(id(module), stage) != stage:
                    raise InvalidRequest(
                        f"a {type(module).__name__} on stages {at[id(module)]} and {stage}",
                        rule="running statistics are kept by one stage",
                        legal="a module of its own for each place in the list, or a grid of one stage",
                    )


def ends_here(made: Sequence[nn.Module], own: range, tie: Tie) -> tuple[nn.Parameter, ...]:
    """The ends of `tie` that this stage holds, the first layer's before the last's."""
    first, first_name, last, last_name = tie
    ends = [(number, name) for number, name in ((first, first_name), (last, last_name)) if number in own]
    for number, name in ends:
        weights = [weight for weight, _ in made[number - own.start].named_parameters(remove_duplicate=False)]
        if name not in weights:
            raise InvalidRequest(
                f"tied={list(tie)}: layer {number} has no weight {name!r}",
                rule=f"a tie names a weight of the layer, one of {', '.join(weights) or 'none'}",
            )
    return tuple(made[number - own.start].get_parameter(name) for number, name in ends)


def agree(
    made: Sequence[nn.Module],
    own: range,
    ties: Sequence[Tie],
    *,
    column: Group,
    ends: Group,
    progress: Callable[[], None],
) -> None:
    """Start from one set of weights: replica 0's, and the first layer's for a tie. Broadcast, not averaged."""
    for layer in made:
        for tensor in (*layer.parameters(), *layer.buffers()):
            if len(column.ranks) > 1:
                wait_until(column.broadcast(tensor.data, column.ranks[0]).done, progress)
    for tie in ties:
        tied_here = ends_here(made, own, tie)
        _check_alike(tie, tied_here, ends, progress)
        if len(tied_here) == 2:
            tied_here[1].data.copy_(tied_here[0].data)
        elif tied_here and len(ends.ranks) > 1:
            wait_until(ends.broadcast(tied_here[0].data, ends.ranks[0]).done, progress)


def _described(weight: nn.Parameter) -> tuple[float, ...]:
    """Properties that both ends of a tie must share, as numbers: trainable or not, bytes per entry, shape."""
    numbers = (weight.requires_grad, weight.element_size(), weight.dim(), *weight.shape, *[0] * _DIMENSIONS)
    return tuple(map(float, numbers[: 3 + _DIMENSIONS]))


def _check_alike(tie: Tie, held: Sequence[nn.Parameter], ends: Group, progress: Callable[[], None]) -> None:
    """Raises InvalidRequest, at both ends, unless the weights of a tie have one shape and type, and are both trained or
    both frozen. Only the two ends call it."""
    if not held:
        return
    first = _described(held[0])
    alike = len({first, *map(_described, held)}) == 1
    if len(held) == 1 and len(ends.ranks) > 1:
        both = torch.tensor([first, [-number for number in first]], dtype=torch.float64, device=held[0].device)
        wait_until(ends.all_reduce(both, "max").done, progress)
        alike = torch.equal(both[0], -both[1])
    if not alike:
        raise InvalidRequest(
            f"tied={list(tie)}: weights that differ in shape or type, or of which one is frozen",
            rule="a tie joins weights of one shape and type, both trained or both frozen",
        )


def cast(layers: nn.Module, half: torch.dtype) -> None:
    """Weights and buffers that are not trained, too: passes have one type."""
    for tensor in (*layers.parameters(), *layers.buffers()):
        if tensor.is_floating_point() and tensor.dtype != half:
            tensor.data = tensor.data.to(half)
