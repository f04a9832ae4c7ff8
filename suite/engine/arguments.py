"""Checks of the arguments of `Engine`: kind and range of each, before anything is made.

Each error names the argument, its value, the rule and what to pass instead.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any

import torch
from torch import nn

from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.core.members import check_protocol, lacking
from suite.core.protocols import Schedule, UpdateRule, WeightPolicy, World
from suite.core.values import shown
from suite.engine.argument_types import EngineArguments
from suite.engine.layers import Layer
from suite.engine.optim.loss_scaler import Dynamic
from suite.engine.optim.lr_schedule import as_rate
from suite.engine.optim.optimizer import SGD, Adam, RMSprop
from suite.engine.prune import Pruning
from suite.memory.layout import Layout

HALVES = ("bfloat16", "float16")
RULES = ("SGD", "Adam", "AdamW", "RMSprop")  # the suite's own update rules, named as torch.optim names them
MEANS = ("mean", "batchmean")  # reductions of torch.nn's losses that are means over a microbatch
_MEMORY = "suite.memory.layout.resident, or partial(offloaded, bucket=...)"


def check(given: EngineArguments) -> list[Layer]:
    """The layers as a list. Raises InvalidRequest for the first argument of `Engine` that is of a wrong kind or out of
    range."""
    layers = _listed(given["layers"])
    _whole("microbatch", given["microbatch"], 1, "samples", "4")
    for name, value, what, legal in (
        ("bucket", given["bucket"], "weights per step", "4_000_000"),
        ("chunk", given["chunk"], "buckets per reduction", "4"),
        ("checkpoints", given["checkpoints"], "layers between activation checkpoints", "1"),
        ("update_every", given["update_every"], "microbatches per update", "1"),
    ):
        if value is not None:
            _whole(name, value, 1, what, f"{name}={legal} or {name}=None", prefix=False)
    _whole("seed", given["seed"], None, "", "0")
    clip = given["clip"]
    if clip is not None and not (_real(clip) and 0 < clip < math.inf):
        raise InvalidRequest(
            f"clip={shown(clip)}", rule="a finite norm above 0, or None", legal="clip=1.0 or clip=None"
        )
    if given["half"] is not None and given["half"] not in HALVES:
        raise InvalidRequest(f"half={shown(given['half'])}", rule=_one_of(HALVES), legal='half="bfloat16" or half=None')
    if given["scaler"] is not None and given["half"] is None:
        raise InvalidRequest("scaler= without half=", rule="one precision scales no loss", legal='half="float16"')
    _kind("grid", given["grid"], Grid, "Grid(inter=2, data=1)")
    _kind("scaler", given["scaler"], Dynamic, "suite.engine.optim.loss_scaler.Dynamic()")
    _kind("compare_batches", given["compare_batches"], bool, "True")
    _kind("pruning", given["pruning"], Pruning, "Pruning(Magnitude(), sparsity=0.9)")
    if given["grid"] is not None and given["grid"].tensor != 1:
        what = f"Grid(tensor={given['grid'].tensor})"
        raise Unsupported(what, rule="the engine splits no layer over ranks", legal="Grid(tensor=1)")
    if given["schedule"] is not None:
        check_protocol("schedule", given["schedule"], Schedule, "OneFOneB()")
    if given["weights"] is not None:
        check_protocol("weights", given["weights"], WeightPolicy, 'Predict(s="paper")')
    if given["world"] is not None:
        check_protocol("world", given["world"], World, "suite.comm.world.init_world()")
    _optimizer(given["optimizer"])
    _loss(given["loss"])
    _memory(given["memory"], given["half"])
    _scores(given["scores"], given["score_names"])
    _split(given["split"], len(layers), (given["grid"] or Grid()).inter)
    _tied(given["tied"], len(layers))
    return layers


def check_half(made: Iterable[nn.Module], half: str | None) -> None:
    """Raises InvalidRequest for weights that are no wider than their half copies, before anything changes."""
    if half is None:
        return
    for parameter in (parameter for module in made for parameter in module.parameters()):
        if parameter.is_floating_point() and parameter.element_size() <= getattr(torch, half).itemsize:
            raise InvalidRequest(
                f"half={half!r} of a weight in {str(parameter.dtype).removeprefix('torch.')}",
                rule="full-precision weights stay beside the half copies",
                legal="layers in float32; close() the engine that trains them first",
            )


def _listed(layers: Any) -> list[Layer]:
    """The layers, of an nn.Sequential or nn.ModuleList those inside. Raises InvalidRequest for anything but modules,
    and functions that make them."""
    legal = "layers=[nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4)], or list(model) of an nn.Sequential"
    if isinstance(layers, nn.Sequential | nn.ModuleList):
        layers = list(layers)
    if isinstance(layers, nn.Module):
        what = f"layers={type(layers).__name__}(...), a single module"
        raise InvalidRequest(what, rule="a list of layers, each called with what the one before gives", legal=legal)
    if not isinstance(layers, Sequence) or isinstance(layers, str | bytes) or not layers:
        rule = "a list of at least one module, or function that makes one"
        raise InvalidRequest(f"layers={shown(layers)}", rule=rule, legal=legal)
    for number, layer in enumerate(layers):
        if not callable(layer):
            what = f"layers: entry {number} is {shown(layer)}"
            raise InvalidRequest(what, rule="each entry is a module, or a function that makes one", legal=legal)
    return list(layers)


def check_batches(batches: Any) -> None:
    """Raises InvalidRequest for batches that cannot be iterated."""
    if not isinstance(batches, Iterable) or isinstance(batches, str | bytes | dict | torch.Tensor):
        rule = "a list, or anything that gives batches of (inputs, targets) one after the other"
        raise InvalidRequest(f"batches={shown(batches)}", rule=rule, legal="batches=[(inputs, targets)]")


def _split(split: Any, layers: int, stages: int) -> None:
    """Raises InvalidRequest unless the split gives every stage its consecutive layers, in order."""
    if split is None:
        return
    each = list(split) if isinstance(split, Sequence) else [None]
    ranges = [span for span in each if isinstance(span, range) and span.step == 1 and span.start < span.stop]
    bounds = [0, *(span.stop for span in ranges)]
    whole = (
        len(ranges) == len(each) == stages and bounds[:-1] == [span.start for span in ranges] and bounds[-1] == layers
    )
    if not whole:
        even = [range(layers * at // stages, layers * (at + 1) // stages) for at in range(stages)]
        raise InvalidRequest(
            f"split={shown(split)} of {layers} layers on {stages} stages",
            rule="a range of layers for each stage, in order, none empty, which together hold all layers",
            legal=f"split={even} or split=None",
        )


def _tied(tied: Any, layers: int) -> None:
    """Raises InvalidRequest unless each tie is (first layer, name, last layer, name)."""
    for tie in tied if isinstance(tied, Sequence) and not isinstance(tied, str) else [tied]:
        if not (
            isinstance(tie, Sequence)
            and len(tie) == 4
            and all(isinstance(tie[place], str) for place in (1, 3))
            and all(_is_whole(tie[place]) and 0 <= tie[place] < layers for place in (0, 2))
        ):
            raise InvalidRequest(
                f"tied={shown(tied)}",
                rule=f"a list of (first layer, name of its weight, last layer, name), layers from 0 to {layers - 1}",
                legal=f'tied=[(0, "weight", {layers - 1}, "weight")]',
            )


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _one_of(names: Sequence[str]) -> str:
    return f"one of {', '.join(map(repr, names))}, or None"


def _whole(name: str, value: Any, least: int | None, what: str, legal: str, *, prefix: bool = True) -> None:
    if not _is_whole(value):
        rule = f"a whole number{f' of {what}' if what else ''}"
    elif least is not None and value < least:
        rule = f"at least {least} of {what}" if what else f"at least {least}"
    else:
        return
    raise InvalidRequest(f"{name}={shown(value)}", rule=rule, legal=f"{name}={legal}" if prefix else legal)


def _kind(name: str, value: Any, kind: type, legal: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise InvalidRequest(f"{name}={shown(value)}", rule=f"a {kind.__name__}, or None", legal=f"{name}={legal}")


def _optimizer(optimizer: Any) -> None:
    rule = "an update rule of the suite: torch's optimizers are not taken yet"
    factory = optimizer
    while isinstance(factory, partial):
        factory = factory.func
    name = (factory if isinstance(factory, type) else type(factory)).__name__
    legal = f"optimizer=suite.{name if name in RULES else 'AdamW'}(lr=1e-3)"
    if isinstance(factory, type) and not issubclass(factory, torch.optim.Optimizer):
        raise InvalidRequest(f"optimizer={name}, a class", rule="an update rule with its learning rate", legal=legal)
    if isinstance(factory, type | torch.optim.Optimizer):
        raise InvalidRequest(f"optimizer=torch.optim.{name}", rule=rule, legal=legal)
    if missing := {"states", "step()"}.intersection(lacking(factory, UpdateRule)):
        what = f"optimizer={shown(optimizer)}, which has no {' and no '.join(sorted(missing))}"
        raise InvalidRequest(what, rule=rule if callable(optimizer) else "an update rule of the suite", legal=legal)
    if isinstance(optimizer, SGD | Adam | RMSprop) and callable(optimizer.lr):
        as_rate(optimizer.lr(0))


def _loss(loss: Any) -> None:
    legal = "loss=torch.nn.functional.cross_entropy"
    if isinstance(loss, type):
        raise InvalidRequest(
            f"loss={loss.__name__}, a class", rule="a function, or a module", legal=f"loss={loss.__name__}()"
        )
    if not callable(loss):
        raise InvalidRequest(f"loss={shown(loss)}", rule="a function of outputs and targets", legal=legal)
    if isinstance(loss, nn.Module) and any(parameter.requires_grad for parameter in loss.parameters()):
        raise InvalidRequest(
            f"loss={type(loss).__name__}(...), which has weights of its own",
            rule="the weights that train are those of layers",
            legal="a last layer that holds them",
        )
    reduction = _reduction(loss)
    if reduction is not None and reduction not in MEANS:
        raise not_a_mean(loss, f"with reduction={reduction!r}")


def _reduction(loss: Any) -> str | None:
    """The `reduction` of a loss that is a module, or a partial with that keyword; None for any other loss."""
    while isinstance(loss, partial) and "reduction" not in loss.keywords:
        loss = loss.func
    reduction = loss.keywords["reduction"] if isinstance(loss, partial) else getattr(loss, "reduction", None)
    return reduction if isinstance(reduction, str) else None


def _default_reduction(loss: Any) -> Any:
    """The default of a loss function's argument `reduction`; None without one."""
    try:
        argument = inspect.signature(loss).parameters.get("reduction")
    except (TypeError, ValueError):  # of a builtin
        return None
    return None if argument is None else argument.default


def not_a_mean(loss: Any, how: str) -> InvalidRequest:
    """The error for a loss that is no mean over the samples of a microbatch, as `how` says."""
    reduction = _reduction(loss) or _default_reduction(loss)
    by_hand = reduction is None or reduction in MEANS
    return InvalidRequest(
        f"loss={named(loss)} {how}",
        rule="the loss is the mean over the samples of a microbatch: the engine divides by microbatches and replicas",
        legal="a mean: .mean(), or a division by the number of samples given" if by_hand else 'reduction="mean"',
    )


def named(function: Any) -> str:
    """The name of a function, or the class name of any other object."""
    while isinstance(function, partial):
        function = function.func
    is_named = isinstance(function, type) or inspect.isroutine(function)
    return str(function.__name__ if is_named else type(function).__name__)


def _memory(memory: Any, half: str | None) -> None:
    if not callable(memory):
        raise InvalidRequest(
            f"memory={shown(memory)}", rule="a function that makes a memory layout", legal=f"memory={_MEMORY}"
        )
    try:
        inspect.signature(memory).bind(entries=1, moments=(), dtype="float64", half=None)
    except TypeError as error:
        rule = "a function of entries, moments, dtype and half that makes a memory layout"
        raise InvalidRequest(f"memory={shown(memory)}: {error}", rule=rule, legal=f"memory={_MEMORY}") from error
    except ValueError:
        pass
    layout = memory(entries=1, moments=("moment",), dtype="float32", half=half)
    if not isinstance(layout, Layout):
        rule = "a function that makes a suite.memory.layout.Layout"
        raise InvalidRequest(
            f"memory={shown(memory)}, which makes {shown(layout)}", rule=rule, legal=f"memory={_MEMORY}"
        )


def _scores(scores: Callable[..., Any] | None, names: Any) -> None:
    legal = 'scores=suite.models.accuracy.top, score_names=("top_1", "top_5")'
    if scores is not None and not callable(scores):
        raise InvalidRequest(f"scores={shown(scores)}", rule="a function of outputs and targets, or None", legal=legal)
    listed = isinstance(names, Sequence) and not isinstance(names, str) and all(isinstance(name, str) for name in names)
    if not listed or bool(names) != (scores is not None) or "loss" in names or len({*names}) != len(names):
        rule = "a list of names, one for each number that scores= gives, none of them 'loss'; empty without scores="
        raise InvalidRequest(f"score_names={shown(names)}", rule=rule, legal=legal)
