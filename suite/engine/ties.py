"""Tied weights: layers of the model, on any stages, that share one weight.

A tied weight has one leaf per end, and an end is a weight of a layer. The gradients of all ends are summed at the
update in the order of layers, the first layer's first. So one rank adds in the same order as several ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from zlib import crc32

import torch
from torch import nn

from suite.comm.p2p.polling import complete
from suite.core.errors import InvalidRequest
from suite.core.protocols import Group, Transport
from suite.engine.layers import Layer

Tie = tuple[int, str, int, str]  # a layer, the name of its weight, another layer, the name of its weight
End = tuple[int, str]  # number of a layer, name of its weight
Ends = tuple[End, ...]  # ends of one tie, in the order of layers


@dataclass(frozen=True, slots=True, eq=False)
class TieGroup:
    """One tied weight in this rank's pipeline.

    Attributes:
        ends: All ends, in the order of layers.
        ranks: World rank that holds each end.
        rank: World rank of this rank.
        group: The ranks that hold ends.
        weights: Leaves of the ends on this rank, in the order of layers. A leaf with several names in a layer occurs
            once, under its first name.
    """

    ends: Ends
    ranks: tuple[int, ...]
    rank: int
    group: Group
    weights: Mapping[End, nn.Parameter]

    @property
    def trained(self) -> bool:
        """Whether this rank holds ends, and they are trained."""
        return any(weight.requires_grad for weight in self.weights.values())

    @property
    def local(self) -> bool:
        """Whether one rank holds all ends."""
        return len(self.group.ranks) == 1

    @property
    def holds_first(self) -> bool:
        """Whether this rank holds the first end, whose mask and gradient norm stand for all ends."""
        return self.ranks[0] == self.rank

    @property
    def duplicates(self) -> tuple[End, ...]:
        """This rank's ends without the first end of the tie."""
        return tuple(self.weights)[1 if self.holds_first else 0 :]

    @property
    def turns(self) -> tuple[tuple[int, tuple[nn.Parameter, ...]], ...]:
        """Runs of consecutive ends on one rank: the rank, and this rank's leaves among them."""
        turns = []
        for rank, run in groupby(zip(self.ranks, self.ends, strict=True), key=lambda pair: pair[0]):
            layers = {layer for _, (layer, _) in run}
            turns.append((rank, tuple(weight for (layer, _), weight in self.weights.items() if layer in layers)))
        return tuple(turns)


def find_ties(layers: Sequence[Layer], named: Iterable[Tie]) -> tuple[Ends, ...]:
    """Ends of each tie: the named weights, and the weights that several modules of the list share.

    Every rank finds the same ties in the same order."""
    pairs: list[tuple[End, End]] = []
    first_use: dict[int, End] = {}  # by the id of the weight
    for number, layer in enumerate(layers):
        if isinstance(layer, nn.Module):
            for name, parameter in layer.named_parameters():
                pairs.append((first_use.setdefault(id(parameter), (number, name)), (number, name)))
    for first, name, other, other_name in named:
        pairs.append((_listed(layers, first, name), _listed(layers, other, other_name)))
    return join_pairs(pairs)


def _listed(layers: Sequence[Layer], number: int, name: str) -> End:
    """The end of a named weight, under the name by which a module lists it."""
    layer = layers[number]
    return int(number), _first_name(layer, name) if isinstance(layer, nn.Module) else name


def _first_name(module: nn.Module, name: str) -> str:
    """The first of the names that a weight of a module has; `name` itself where there is no such weight."""
    weight = dict(module.named_parameters(remove_duplicate=False)).get(name)
    return next((first for first, listed in module.named_parameters() if listed is weight), name)


def join_pairs(pairs: Iterable[tuple[End, End]]) -> tuple[Ends, ...]:
    """Sets of ends that pairs connect, each in the order of layers; a pair of equal ends connects nothing."""
    sets: dict[End, frozenset[End]] = {}
    for one, other in pairs:
        if one != other:
            union = sets.get(one, frozenset([one])) | sets.get(other, frozenset([other]))
            sets |= dict.fromkeys(union, union)
    return tuple(sorted(tuple(sorted(union)) for union in set(sets.values())))


def as_pairs(ends: Ends) -> list[Tie]:
    """The ends of one tie as pairs of neighbours, in the form of the argument `tied`."""
    return [(*one, *other) for one, other in pairwise(ends)]


def make_ties(
    ties: Sequence[Ends],
    ranks: Sequence[tuple[int, ...]],
    groups: Sequence[Group],
    modules: Mapping[int, nn.Module],
    rank: int,
) -> tuple[TieGroup, ...]:
    """The ties of the model on this rank.

    Args:
        ranks: World rank of each end of each tie.
        groups: The ranks of each tie.
        modules: Layers of this rank, by number.
        rank: World rank of this rank.

    Raises InvalidRequest for ends that this rank's layers do not have, and for a weight in two ties."""
    made = tuple(
        TieGroup(ends, end_ranks, rank, group, _weights(ends, modules))
        for ends, end_ranks, group in zip(ties, ranks, groups, strict=True)
    )
    seen: dict[End, TieGroup] = {}
    for tie in made:
        for number, name in tie.weights:
            if seen.setdefault((number, name), tie) is not tie:
                raise InvalidRequest(
                    f"tied={as_pairs(tie.ends)}: weight {name} of layer {number} has another name in another tie",
                    rule="ties name each weight of a layer by one name",
                    legal=f"the name {name!r} in both ties",
                )
    return made


def _weights(ends: Ends, modules: Mapping[int, nn.Module]) -> dict[End, nn.Parameter]:
    """Leaves of the ends on this rank. Raises InvalidRequest for an end that a layer does not have."""
    weights: dict[End, nn.Parameter] = {}
    for number, name in ends:
        if number in modules:
            named = dict(modules[number].named_parameters(remove_duplicate=False))
            if name not in named:
                raise InvalidRequest(
                    f"tied={as_pairs(ends)}: layer {number} has no weight {name!r}",
                    rule=f"a tie names a weight of the layer, one of {', '.join(named) or 'none'}",
                )
            weights[number, _first_name(modules[number], name)] = named[name]
    return weights


def broadcast_ties(ties: Iterable[TieGroup], transport: Transport) -> None:
    """Copy the weight of each tie's first end to its other ends.

    Raises InvalidRequest, on all ranks of the tie, unless the ends have one shape and dtype, and all train or all are
    frozen."""
    for tie in ties:
        if not tie.weights:
            continue
        _check_ends_match(tie, transport)
        first, *others = tie.weights.values()
        if not tie.local:
            complete(tie.group.broadcast(first.data, tie.ranks[0]), transport)
        for weight in others:
            weight.data.copy_(first.data)


def _check_ends_match(tie: TieGroup, transport: Transport) -> None:
    """Raises InvalidRequest, on all ranks of the tie, unless its ends have equal properties."""
    weights = list(tie.weights.values())
    codes = [float(crc32(repr((w.requires_grad, w.dtype, w.shape)).encode())) for w in weights]
    differ = len(set(codes)) > 1
    if not tie.local:
        extremes = torch.tensor([max(codes), -min(codes)], dtype=torch.float64).to(weights[0].device)
        complete(tie.group.all_reduce(extremes, "max"), transport)
        differ = bool(extremes.sum())
    if differ:
        raise InvalidRequest(
            f"tied={as_pairs(tie.ends)}: weights that differ in shape or type, or of which one is frozen",
            rule="a tie joins weights of one shape and type, all trained or all frozen",
        )
