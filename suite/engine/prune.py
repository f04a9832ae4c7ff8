"""Decides when an engine's network is pruned, and how: its states become those of what a ticket keeps.

A ticket is drawn by all stages together, from full-precision weights: before the first batch, or when the method says
so between batches. The weights go on from where they are (You et al. find no gain in rewinding), and so do moments.
A tied weight is pruned as its first layer says; the other end takes its index over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from suite.comm.waiting import until
from suite.core.errors import Refused
from suite.engine.order import Order, layout_of
from suite.pruning.ticket import Indices, Key, Method, View, check_index, check_sparsity, prunable, told

if TYPE_CHECKING:
    from suite.engine.train import Engine


class Pruning:
    """What an engine prunes. method: draws the ticket; sparsity: of what may be pruned; what: weights, or all"""

    def __init__(self, method: Method, sparsity: float, what: str = "weights") -> None:
        self.method, self.sparsity, self.what = method, check_sparsity(sparsity), what

    def look(self, engine: Engine) -> bool:
        """Draws the ticket and prunes, if it is time and the method finds one. Every rank calls it between batches."""
        if engine.pruned is not None or not self.method.due(engine.updates):
            return False
        indices = self.draw(engine)
        if indices is not None:
            prune(engine, indices)
        return indices is not None

    def draw(self, engine: Engine) -> Indices | None:
        """This stage's part of the ticket; None where the method wants to look again."""
        own = dict(numbered(engine))
        twins = {(last, name) for _, _, last, name in engine.ties}
        keys = [(n, name) for n, layer in own.items() for name in prunable(layer, self.what) if (n, name) not in twins]

        def weight(key: Key) -> torch.Tensor:
            parameter = own[key[0]].get_parameter(key[1])
            if (state := engine.held) is None or not parameter.requires_grad:
                return parameter.data
            return state.export(parameter)["weight"]

        def total(number: float) -> float:
            counted = number if engine.place.replica == 0 else 0.0
            return number if engine.grid.size == 1 else engine.world.total(counted, engine.transport.progress)

        view = View(
            layers=list(own.items()),
            weight=weight,
            keys=keys,
            sparsity=self.sparsity,
            seed=engine.seed,
            total=total,
            stage=engine.place.stage,
            stages=engine.grid.inter,
        )
        indices = self.method.draw(view)
        return None if indices is None else indices | _mirrored(engine, indices)


def _mirrored(engine: Engine, indices: Indices) -> Indices:
    """The indices of tied weights at the output's end, which are those of the input's end."""
    found: Indices = {}
    for first, first_name, last, last_name in engine.ties:
        own = indices.get((first, first_name))
        if engine.grid.inter == 1:
            if own is not None:
                found[last, last_name] = own
        elif engine.place.first or engine.place.last:
            count = torch.tensor([0 if own is None else own.numel()])
            _broadcast(engine, count)
            if int(count):
                index = own if own is not None else torch.empty(int(count), dtype=torch.int32)
                index = index.to(engine.world.device)
                _broadcast(engine, index)
                if engine.place.last:
                    found[last, last_name] = index
    return found


def _broadcast(engine: Engine, tensor: torch.Tensor) -> None:
    ends = engine.ends
    until(ends.broadcast(tensor, ends.ranks[0]).done, engine.transport.progress)


def numbered(engine: Engine) -> Iterator[tuple[int, nn.Module]]:
    """This stage's layers, by their numbers in the whole model."""
    yield from zip(engine.split[engine.place.stage], engine.stage.layers, strict=True)


def checked(engine: Engine, indices: Mapping[Key, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The indices of this stage's weights by the weights' ids. Raises Refused for one that is not of this model."""
    own, kept = dict(numbered(engine)), {}
    for key, index in indices.items():
        if key[0] not in own:
            continue  # another stage's
        parameter = dict(own[key[0]].named_parameters()).get(key[1])
        if parameter is None or not parameter.requires_grad:
            raise Refused(f"a ticket with {told(key)}, which is not trained here", rule="a ticket of this model")
        check_index(key, index, parameter.numel())
        kept[id(parameter)] = index
    for first, first_name, last, last_name in engine.ties:
        ends = [
            dict(own[n].named_parameters())[name] for n, name in ((first, first_name), (last, last_name)) if n in own
        ]
        found = [kept.get(id(parameter)) for parameter in ends]
        if len(found) == 2 and not _same(*found):
            raise Refused(f"a ticket that prunes one end of the tie of layers {first} and {last}", rule="both, alike")
    return kept


def prunes(engine: Engine, indices: Mapping[Key, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The places that stay, by the ids of this stage's weights, once all is known to fit; see prune for what does
    not."""
    if engine.pruned is not None:
        raise Refused("a network pruned twice", rule="one ticket per training", legal="a new engine")
    kept = checked(engine, indices)
    if (old := engine.held) is not None:
        layout_of(engine.layout, Order(old.parameters, kept), tuple(old.rule.moments), old.dtype, old.half)
    return kept


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


@torch.no_grad()
def prune(engine: Engine, indices: Mapping[Key, torch.Tensor]) -> None:
    """Every rank gives its stage's part of a ticket, between batches. Weights and moments of what stays are kept, the
    rest is zero from now on. While states are made anew both the old and the new ones exist.

    Raises Refused within a batch, for a network that is pruned already, for a ticket of another model and for a memory
    layout that keeps every entry."""
    if not engine.drained:
        raise Refused("a network pruned within a batch", rule="between batches", legal="after train_batch")
    kept, old = prunes(engine, indices), engine.held
    engine.pruned = engine.updates
    if old is None:
        engine.hold(kept)
        return
    before = {id(p): old.export(p) for p in old.parameters}
    for parameter in old.parameters:
        parameter.data, parameter.grad = before[id(parameter)]["weight"].to(old.device), None
    skipped, updates = engine.update.skipped, old.rule.updates
    engine.hold(kept)
    new = engine.state
    for parameter in new.parameters:
        for name, moment in new.rule.moments.items():
            new.write(moment, parameter, before[id(parameter)][name])
    new.rule.updates, engine.update.skipped = updates, skipped
