"""Prune the network of an engine: replace its model states by the states of the kept weights.

A ticket is drawn by all stages together, from full-precision weights: before the first batch, or when the method says
so between batches. The weights go on from where they are (You et al. find no gain in rewinding), and so do moments.
A tied weight is pruned as its first layer says; the other end takes its index over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from suite.comm.p2p.polling import wait_until
from suite.core.errors import InvalidRequest
from suite.core.members import lacking
from suite.core.protocols import MaskMethod
from suite.core.values import shown
from suite.engine.collective_guard import Together
from suite.engine.states.flat_layout import Order, check_buckets, layout_of
from suite.pruning.mask import Indices, Key, View, check_index, prunable, told
from suite.pruning.validation import WHAT, check_sparsity, check_what

if TYPE_CHECKING:
    from suite.engine.engine import Engine


_ASKED = "asked"  # criterion of a search, in addition to the state of the method


class Pruning:
    """Pruning of an engine.

    Attributes:
        method: Draws the ticket.
        sparsity: Of what may be pruned.
        what: weights, or all.
    """

    def __init__(self, method: MaskMethod, sparsity: float, what: str = "weights") -> None:
        if isinstance(method, type) or (missing := lacking(method, MaskMethod)):
            rule = "an object of a class" if isinstance(method, type) else f"an object with {' and '.join(missing)}"
            raise InvalidRequest(
                f"Pruning(method={shown(method)})", rule=rule, legal="Pruning(Magnitude(), sparsity=0.9)"
            )
        check_what(what)
        self.method, self.sparsity, self.what = method, check_sparsity(sparsity), what

    def remembered(self) -> dict[str, torch.Tensor]:
        """State that a search in another process needs to continue; empty where the method has none."""
        if not self.method.searches:
            return {}
        settings = torch.tensor([self.sparsity, WHAT.index(self.what)], dtype=torch.float64)
        return {**self.method.remembered(), _ASKED: settings}

    def check(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Raises InvalidRequest for a search of another kind than this one. Changes nothing."""
        sparsity, what = kept[_ASKED].tolist()
        if (sparsity, WHAT[int(what)]) != (self.sparsity, self.what) or not self.method.searches:
            told_before = f"sparsity={sparsity} and what={WHAT[int(what)]}"
            told_now = f"sparsity={self.sparsity} and what={self.what} by {type(self.method).__name__}"
            raise InvalidRequest(
                f"a search with {told_before}, this engine's has {told_now}",
                rule="a search goes on as it began",
                legal=told_before,
            )
        self.method.check(_remembered(kept))

    def recall(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Continue from the saved state, which `check` has accepted."""
        self.method.recall(_remembered(kept))

    def look(self, engine: Engine, *, since: int | None = None) -> bool:
        """Draws the ticket and prunes, if it is time and the method finds one. Every rank calls it between batches;
        after a stream it is time where it was after any update `since` that number."""
        now = engine.updates
        times = (now,) if since is None else range(since + 1, now + 1)
        if engine.pruned is not None or not any(map(self.method.due, times)):
            return False
        indices = self.draw(engine)
        if indices is not None:
            prune(engine, indices)
        return indices is not None

    def draw(self, engine: Engine) -> Indices | None:
        """This stage's part of the ticket; None where the method wants to look again."""
        layers, together = dict(numbered(engine)), Together(engine)
        twins = {(last, name) for _, _, last, name in engine.ties}
        keys = [
            (n, name) for n, layer in layers.items() for name in prunable(layer, self.what) if (n, name) not in twins
        ]

        def weight(key: Key) -> torch.Tensor:
            parameter = layers[key[0]].get_parameter(key[1])
            if (state := engine.held) is None or not parameter.requires_grad:
                return parameter.data
            return state.export(parameter)["weight"]

        view = View(
            layers=list(layers.items()),
            weight=weight,
            keys=keys,
            sparsity=self.sparsity,
            seed=engine.seed,
            total=together.total,
            stage=engine.place.stage,
            stages=engine.grid.inter,
        )
        with together.step("a ticket is drawn"):
            indices = self.method.draw(view)
        return None if indices is None else {**indices, **_mirrored(engine, indices)}


def _remembered(kept: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The method's own part of a search."""
    return {name: tensor for name, tensor in kept.items() if name != _ASKED}


def _mirrored(engine: Engine, indices: Mapping[tuple[int, str], torch.Tensor]) -> Indices:
    """The indices of tied weights at the output end, equal to the indices at the input end."""
    mirrored: Indices = {}
    for first, first_name, last, last_name in engine.ties:
        own_index = indices.get((first, first_name))
        if engine.grid.inter == 1:
            if own_index is not None:
                mirrored[last, last_name] = own_index
        elif engine.place.first or engine.place.last:
            count = torch.tensor([0 if own_index is None else own_index.numel()], device=engine.world.device)
            _broadcast(engine, count)
            if int(count):
                index = own_index if own_index is not None else torch.empty(int(count), dtype=torch.int32)
                index = index.to(engine.world.device)
                _broadcast(engine, index)
                if engine.place.last:
                    mirrored[last, last_name] = index
    return mirrored


def _broadcast(engine: Engine, tensor: torch.Tensor) -> None:
    ends = engine.ends
    wait_until(ends.broadcast(tensor, ends.ranks[0]).done, engine.transport.progress)


def numbered(engine: Engine) -> Iterator[tuple[int, nn.Module]]:
    """This stage's layers, by their numbers in the whole model."""
    yield from zip(engine.split[engine.place.stage], engine.stage.layers, strict=True)


def checked(engine: Engine, indices: Mapping[Key, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The indices of this stage's weights by the weights' ids. Raises InvalidRequest for a mask of another model."""
    if not isinstance(indices, Mapping):
        raise InvalidRequest(f"a ticket that is {shown(indices)}", rule="indices by (layer, name of its weight)")
    own_layers, masks = dict(numbered(engine)), {}
    layers = engine.split[-1].stop
    for key, index in indices.items():
        if not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], int) and 0 <= key[0] < layers):
            raise InvalidRequest(f"a ticket with {key!r}", rule=f"(layer below {layers}, name of its weight)")
        if key[0] not in own_layers:
            continue  # another stage's
        parameter = dict(own_layers[key[0]].named_parameters()).get(key[1])
        if parameter is None or not parameter.requires_grad:
            raise InvalidRequest(f"a ticket with {told(key)}, which is not trained here", rule="a ticket of this model")
        check_index(key, index, parameter.numel())
        masks[id(parameter)] = index
    return masks


def prunes(engine: Engine, indices: Mapping[Key, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The kept indices, by the ids of this stage's weights, after all checks; `prune` lists the refusals. One rank's
    part: nothing is asked of the others.
    """
    if engine.pruned is not None:
        raise InvalidRequest("a network pruned twice", rule="one ticket per training", legal="a new engine")
    masks = checked(engine, indices)
    if (old := engine.held) is not None:
        order = Order(old.parameters, masks)
        layout = layout_of(engine.layout, order, tuple(old.rule.moments), old.dtype, old.half)
        check_buckets(layout, order, engine.bucket, old.device)
    return masks


def prune(engine: Engine, indices: Mapping[Key, torch.Tensor]) -> None:
    """Every rank gives its stage's part of a ticket, between batches. Weights and moments of what stays are kept, the
    rest is zero from now on. While states are made anew both the old and the new ones exist.

    Raises InvalidRequest, on all ranks and before anything has changed, within a batch, for a network that is pruned
    already, for a ticket of nothing, of another model or that differs between replicas or between the ends of a tie,
    and for a memory layout that keeps every entry."""
    together = Together(engine)
    with together.step("the network is pruned"):
        if not engine.drained:
            raise InvalidRequest("a network pruned within a batch", rule="between batches", legal="after train_batch")
        masks = prunes(engine, indices)
    if not together.total(len(masks)):
        raise InvalidRequest("a ticket of no weight", rule="something is pruned", legal="indices by (layer, name)")
    _agree(engine, together, indices)
    adopt(engine, masks)
    engine.pruned = engine.updates


def _agree(engine: Engine, together: Together, indices: Mapping[Key, torch.Tensor]) -> None:
    """Raises InvalidRequest, on all ranks, where replicas or the ends of a tie would keep other places."""
    own_layers = engine.split[engine.place.stage]
    mine = sorted(key for key in indices if key[0] in own_layers)
    part = b"".join(f"{key}".encode() + _bytes(indices[key]) for key in mine)
    for stage in range(engine.grid.inter):
        if not together.alike(part if stage == engine.place.stage else None):
            raise InvalidRequest(
                f"tickets of stage {stage} that differ between replicas", rule="one ticket per training"
            )
    for first, first_name, last, last_name in engine.ties:
        ends = [(n, name) for n, name in ((first, first_name), (last, last_name)) if n in own_layers]
        told_here = [_bytes(indices[key]) if key in indices else b"" for key in ends]
        if len(set(told_here)) > 1 or not together.alike(told_here[0] if told_here else None):
            raise InvalidRequest(
                f"a ticket that prunes one end of the tie of layers {first} and {last}", rule="both, alike"
            )


def _bytes(index: torch.Tensor) -> bytes:
    return index.cpu().numpy().tobytes()


@torch.no_grad()
def adopt(engine: Engine, kept: Mapping[int, torch.Tensor]) -> None:
    """Makes the states anew, of what `prunes` found to fit. Nothing here can be refused."""
    if (old := engine.held) is None:
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
