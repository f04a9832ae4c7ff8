"""Early-bird tickets (You et al., Drawing Early-Bird Tickets, ICLR 2020): prune when the mask has converged.

The set of the largest weights becomes stable long before training ends. After each epoch, the method draws a mask at
the requested sparsity. The first mask that differs little from the previous masks is the ticket. SAMO prunes with it
(Section VI-A).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from suite.core.bounds import Bounds, Count, Positive, check_bounds
from suite.core.errors import UnknownName
from suite.core.protocols import MaskMethod
from suite.pruning.magnitude import check_kept, check_scope, ranked
from suite.pruning.mask import Indices, Key, View, check_entries, check_some

KINDS = ("channels", "weights")
_STATE_KEYS = ("epochs", "distances")  # state of the search in addition to the masks
_SET = torch.tensor([value.bit_count() for value in range(256)])  # bits of a byte


@dataclass(eq=False)
class EarlyBird(MaskMethod):
    """Search for an early-bird ticket: a mask every `epoch` batches, until the newest is close to all of the window.

    Each stage of each replica has its own instance. After it has found a ticket, an instance can search again.

    Attributes:
        epoch: Batches per epoch.
        window: Number of epochs whose masks are compared, including the newest.
        distance: Upper limit of the normalised Hamming distance between the newest mask and each earlier one.
        latest: Number of epochs after which the newest mask is the ticket at any distance; None sets no limit.
        kind: `weights` ranks all prunable weights by |weight|. `channels` ranks the scales of batch norms that directly
            follow a convolution of their layer, over the whole network or per batch norm (scope `layer`). A pruned
            channel loses its scale, its shift and its rows of the convolution. All other weights stay dense and are not
            in the mask.
        before: Packed masks of earlier epochs, eight entries per byte.
        distances: Largest distance of each epoch from the second on, in the newest search.
    """

    epoch: Count
    window: Annotated[int, Bounds("a whole number, at least 2", "5", 2, whole=True)] = 5
    distance: Positive = 0.1
    latest: Count | None = None
    kind: str = "weights"
    scope: str = "global"
    searches = True

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.kind not in KINDS:
            raise UnknownName("kind", self.kind, KINDS)
        check_scope(self.scope)
        self.before: deque[dict[Key, torch.Tensor]] = deque(maxlen=self.window - 1)
        self.distances: list[float] = []
        self.epochs = 0

    def draws_after(self, batches: int) -> bool:
        return batches > 0 and batches % self.epoch == 0

    def draw(self, view: View) -> Indices | None:
        """The mask; None before the search has converged.

        Raises InvalidRequest on every stage if there is no weight to rank, or if a weight would keep no entry or a
        batch norm no channel.
        """
        seen, pairs = view, dict[Key, tuple[Key, Key]]()
        if self.kind == "channels":
            pairs = dict(_pairs(view))
            seen = replace(view, keys=tuple(pairs))
        check_some(seen, self.kind)
        if not self.epochs:
            self.distances = []
        newest = ranked(seen, self.scope)
        masks = {key: packed(index, view.weight(key).numel()) for key, index in newest.items()}
        entries = view.total(sum(view.weight(key).numel() for key in newest))
        apart = [view.total(sum(differing(old[key], masks[key]) for key in masks)) for old in self.before]
        if apart:
            self.distances.append(max(apart) / entries)
        settled = len(self.before) == self.before.maxlen and self.distances[-1] < self.distance
        self.epochs += 1
        self.before.append(masks)
        if not settled and (self.latest is None or self.epochs < self.latest):
            return None
        self.before.clear()
        self.epochs = 0
        check_kept(newest, seen)
        return _of_channels(newest, pairs, view) if self.kind == "channels" else newest

    def state_dict(self) -> dict[str, torch.Tensor]:
        """State of a search for another process: masks of this stage, distances and epochs."""
        masks = {
            f"{age}/{key[0]}/{key[1]}": mask
            for age, age_masks in enumerate(self.before)
            for key, mask in age_masks.items()
        }
        return {
            **masks,
            "epochs": torch.tensor([self.epochs, len(self.before)]),
            "distances": torch.tensor(self.distances, dtype=torch.float64),
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continue from the saved state of a search with the same settings."""
        self.epochs, count = map(int, state["epochs"])
        self.distances = state["distances"].tolist()
        self.before.clear()
        self.before.extend({} for _ in range(count))
        for name, mask in state.items():
            if name not in _STATE_KEYS:
                age, number, weight = name.split("/", 2)
                self.before[int(age)][int(number), weight] = mask.cpu()


def packed(index: torch.Tensor, entries: int) -> torch.Tensor:
    """A mask of `entries` bits, set at `index`, as bytes on the host, where the masks of earlier epochs are stored."""
    mask = torch.zeros(-(-entries // 8) * 8, dtype=torch.uint8, device=index.device)
    mask[index.long()] = 1
    places = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=index.device)
    return (mask.view(-1, 8) * places).sum(dim=1, dtype=torch.uint8).cpu()


def differing(first: torch.Tensor, second: torch.Tensor) -> int:
    """Number of entries in which two packed masks differ."""
    return int(torch.bincount(first ^ second, minlength=256) @ _SET)


# -- channels --------------------------------------------------------------------------------------------------------


def _pairs(view: View) -> Iterator[tuple[Key, tuple[Key, Key]]]:
    """Yield the key of each batch norm's scale, with the keys of its shift and the preceding convolution's weight."""
    allowed = set(view.keys)
    for number, layer in view.layers:
        for norm, convolution in followed(layer):
            key = number, f"{convolution}.weight"
            if key in allowed:
                yield (number, f"{norm}.weight"), ((number, f"{norm}.bias"), key)


def followed(layer: nn.Module) -> Iterator[tuple[str, str]]:
    """The batch norms of a layer that directly follow a convolution, as (batch norm, convolution), in module order."""
    before: tuple[str, nn.Module] = "", layer
    for name, module in layer.named_modules():
        if next(module.children(), None) is not None:
            continue
        convolves = isinstance(before[1], _ConvNd) and not isinstance(before[1], _ConvTransposeNd)
        if convolves and isinstance(module, _BatchNorm) and module.affine:
            yield name, before[0]
        before = name, module


def _of_channels(channels: Indices, pairs: dict[Key, tuple[Key, Key]], view: View) -> Indices:
    indices: Indices = {}
    for scale, index in channels.items():
        shift, convolution = pairs[scale]
        weight = view.weight(convolution)
        check_entries(convolution, weight.numel())
        size = weight.numel() // view.weight(scale).numel()  # entries of one output channel's row
        rows = index.long()[:, None] * size + torch.arange(size, device=index.device)
        indices |= {convolution: rows.flatten().to(torch.int32), scale: index, shift: index.clone()}
    return indices
