"""Early-bird tickets (You et al., Drawing Early-Bird Tickets, ICLR 2020): when the mask has converged.

Large weights are known long before training ends: after each epoch a mask is drawn at the requested sparsity, and
once it differs little from earlier masks it is the ticket. SAMO prunes so (Section VI-A)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.protocols import MaskMethod
from suite.pruning.magnitude import SCOPES, check_kept, check_scope, ranked
from suite.pruning.mask import Indices, Key, View, check_entries, check_some

KINDS = ("channels", "weights")
_TOLD = ("epochs", "distances", "settings")  # state of the search in addition to its masks
_SET = torch.tensor([value.bit_count() for value in range(256)])  # bits of a byte


class EarlyBird(MaskMethod):
    """Draws a mask every `epoch` batches; the ticket is the newest when it is near to all others of the window.

    It holds what it has seen: every stage of every replica has one of its own, which can search anew once it has found
    a ticket.

    Attributes:
        window: Epochs whose masks are compared, the newest among them.
        distance: Below it the largest normalised Hamming distance of the newest to another must fall.
        latest: Epochs after which the newest mask is taken as it is; None: however long it takes.
        kind: `weights` ranks what may be pruned by |weight|. `channels` ranks the scales of the batch norms that
            directly follow a convolution of their layer, over the whole network or (scope `layer`) each by itself; a
            channel that goes takes its scale, its shift and the convolution's rows that make it. All other weights then
            stay dense: the ticket does not name them.
        distances: The largest distance of each epoch from the second on, of the newest search.
    """

    searches = True

    def __init__(
        self,
        epoch: int,
        window: int = 5,
        distance: float = 0.1,
        latest: int | None = None,
        kind: str = "weights",
        scope: str = "global",
    ) -> None:
        for name, value, least in (("epoch", epoch, 1), ("window", window, 2), ("latest", latest, 1)):
            if value is None and name == "latest":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                rule, legal = f"a whole number, at least {least}", f"EarlyBird({name}={least})"
                raise InvalidRequest(f"EarlyBird({name}={value})", rule=rule, legal=legal)
        if not isinstance(distance, int | float) or isinstance(distance, bool) or not 0 < distance <= 1:
            raise InvalidRequest(
                f"EarlyBird(distance={distance})", rule="a share above 0, to 1", legal="EarlyBird(distance=0.1)"
            )
        if kind not in KINDS:
            raise UnknownName("kind", kind, KINDS)
        check_scope(scope)
        self.epoch, self.window, self.kind, self.scope = epoch, window, kind, scope
        self.distance, self.latest = distance, latest
        self.before: deque[dict[Key, torch.Tensor]] = deque(maxlen=window - 1)  # masks, eight entries to a byte
        self.distances: list[float] = []
        self.epochs = 0

    def due(self, batches: int) -> bool:
        return batches > 0 and batches % self.epoch == 0

    def draw(self, view: View) -> Indices | None:
        """Raises InvalidRequest where there is nothing to rank, on every stage alike, and where nothing of a weight, or
        no channel of a batch norm, would stay."""
        pairs = dict(_pairs(view)) if self.kind == "channels" else {}
        seen = replace(view, keys=tuple(pairs)) if self.kind == "channels" else view
        if self.kind == "channels":
            check_some(seen, "batch norms that directly follow a convolution", legal='EarlyBird(kind="weights")')
        check_some(seen)
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

    def remembered(self) -> dict[str, torch.Tensor]:
        """State of a search for another process: masks of this stage, distances, epochs, and the settings of masks
        and their times.
        """
        masks = {
            f"{age}/{key[0]}/{key[1]}": mask
            for age, age_masks in enumerate(self.before)
            for key, mask in age_masks.items()
        }
        return {
            **masks,
            "epochs": torch.tensor([self.epochs, len(self.before)]),
            "distances": torch.tensor(self.distances, dtype=torch.float64),
            "settings": torch.tensor(_numbers(self)),
        }

    def check(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Changes nothing. Raises InvalidRequest for malformed state, and for a search with other settings; only the
        end of the search (`distance`, `latest`) may differ.
        """
        if missing := [name for name in _TOLD if name not in kept]:
            raise InvalidRequest(f"a search for a ticket without {missing[0]}", rule="what EarlyBird.remembered gave")
        numbers = kept["settings"].tolist()
        if len(numbers) != len(layer_numbers := _numbers(self)):
            raise InvalidRequest(
                f"a search for a ticket by {len(numbers)} settings", rule=f"{len(layer_numbers)} settings"
            )
        settings = ("epoch", None), ("window", None), ("kind", KINDS), ("scope", SCOPES)
        for (name, words), then, now in zip(settings, numbers, layer_numbers, strict=True):
            if then != now:
                first, second = (words[one] if words and one in range(len(words)) else one for one in (then, now))
                what = f"a search with EarlyBird({name}={first}), this engine's is {second}"
                raise InvalidRequest(what, rule="it goes on as it began", legal=f"EarlyBird({name}={first})")

    def recall(self, kept: Mapping[str, torch.Tensor]) -> None:
        """Continue from the saved state. Raises InvalidRequest as check does, before anything changes."""
        self.check(kept)
        self.epochs, count = map(int, kept["epochs"])
        self.distances = kept["distances"].tolist()
        self.before.clear()
        self.before.extend({} for _ in range(count))
        for name, mask in kept.items():
            if name not in _TOLD:
                age, number, weight = name.split("/", 2)
                self.before[int(age)][int(number), weight] = mask.cpu()


def _numbers(method: EarlyBird) -> list[int]:
    """The settings that decide masks and when they are drawn."""
    return [method.epoch, method.window, KINDS.index(method.kind), SCOPES.index(method.scope)]


def packed(index: torch.Tensor, entries: int) -> torch.Tensor:
    """A mask of so many entries that is set where `index` says, as bytes on the host, where epochs' masks wait."""
    mask = torch.zeros(-(-entries // 8) * 8, dtype=torch.uint8, device=index.device)
    mask[index.long()] = 1
    places = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8, device=index.device)
    return (mask.view(-1, 8) * places).sum(dim=1, dtype=torch.uint8).cpu()


def differing(first: torch.Tensor, second: torch.Tensor) -> int:
    """Entries in which two packed masks differ."""
    return int(torch.bincount(first ^ second, minlength=256) @ _SET)


# -- channels --------------------------------------------------------------------------------------------------------


def _pairs(view: View) -> Iterator[tuple[Key, tuple[Key, Key]]]:
    """By the scale of a batch norm: its shift, and the weight of the convolution that it follows."""
    allowed = set(view.keys)
    for number, layer in view.layers:
        for norm, convolution in followed(layer):
            key = number, f"{convolution}.weight"
            if key in allowed:
                yield (number, f"{norm}.weight"), ((number, f"{norm}.bias"), key)


def followed(layer: nn.Module) -> Iterator[tuple[str, str]]:
    """The batch norms of a layer that come directly after a convolution, in the order of its modules: both names."""
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
        size = weight.numel() // view.weight(scale).numel()  # entries of a row: what makes one channel
        rows = index.long()[:, None] * size + torch.arange(size, device=index.device)
        indices |= {convolution: rows.flatten().to(torch.int32), scale: index, shift: index.clone()}
    return indices
