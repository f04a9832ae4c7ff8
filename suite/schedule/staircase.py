"""1F1B schedules as a staircase: 1F1B, eager 1F1B, ZB-H1, ZB-H2, interleaved 1F1B and interleaved zero bubble.

At step k a rank runs forward pass k, backward pass k - ahead and, with a split backward pass, weight gradient
k - ahead - late. Distance `ahead` falls by `lead` from each rank to the next, so that messages arrive in time.

| schedule | chunks | lead | split | source |
|---|---|---|---|---|
| 1F1B | 1 | 1 | no | PipeDream-Flush, arXiv 2006.09503 |
| eager 1F1B | 1 | 2 | no | arXiv 2405.15362, Figure 1 |
| ZB-H1 | 1 | 1 | yes | arXiv 2401.10241, Section 2.1 |
| ZB-H2 | 1 | 2 | yes | arXiv 2401.10241, Section 2.2 |
| interleaved 1F1B | 2 or more | 2 | no | arXiv 2104.04473, Section 2.2 |
| interleaved zero bubble | 2 or more | 1 | yes | torch.distributed.pipelining |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from suite.core.errors import InvalidRequest
from suite.core.op import Kind, Place
from suite.schedule.ordered import Ordered, Pass


@dataclass(frozen=True)
class Staircase(Ordered):
    """Alternate forward passes, backward passes and weight gradients at constant distances.

    Attributes:
        chunks: Stages per rank.
        lead: Steps by which a rank's first backward pass follows that of the next rank. None: 2 for interleaved 1F1B
            and 1 for every other schedule.
        split: Separate the weight gradients from the backward pass.
    """

    chunks: int = 1
    lead: int | None = None
    split: bool = False

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise InvalidRequest(f"schedule.chunks={self.chunks}", rule="at least 1 stage per rank", legal="2")
        if self.lead not in (None, 1, 2):
            rule = "1 or 2 steps between neighbouring ranks; 3 deadlock with several chunks"
            raise InvalidRequest(f"schedule.lead={self.lead}", rule=rule, legal="1 or 2")

    def order(self, place: Place, microbatches: int) -> Iterator[Pass]:
        backward = Kind.INPUT if self.split else Kind.BACKWARD
        ahead, late = self._distances(place, microbatches)
        forwards = list(self._passes(place, microbatches))
        backwards = list(self._passes(place, microbatches, reverse=True))
        for step in range(len(forwards) + ahead + late):
            for kind, passes, position in (
                (Kind.FORWARD, forwards, step),
                (backward, backwards, step - ahead),
                (Kind.WEIGHT, backwards if self.split else [], step - ahead - late),
            ):
                if 0 <= position < len(passes):
                    yield kind, *passes[position]

    def _distances(self, place: Place, microbatches: int) -> tuple[int, int]:
        """Steps from a forward pass to its backward pass, and from there to its weight gradient."""
        lead = self.lead or (2 if self.chunks > 1 and not self.split else 1)
        longest = len(next(_rounds(range(microbatches), place.ranks)))
        ahead = lead * (place.ranks - 1 - place.rank) + (self.chunks - 1) * longest
        late = place.rank * (lead if self.chunks == 1 else 1) if self.split else 0
        return min(ahead, microbatches * self.chunks), late

    def _passes(self, place: Place, microbatches: int, *, reverse: bool = False) -> Iterator[tuple[int, int]]:
        """(stage, microbatch) of each pass: every round of microbatches visits all chunks."""
        stages = place.held_stages[::-1] if reverse else place.held_stages
        for members in _rounds(range(microbatches), place.ranks):
            for stage in stages:
                yield from ((stage, index) for index in members)


def _rounds(microbatches: range, ranks: int) -> Iterator[range]:
    """Divide the microbatches into rounds of about `ranks`, as equal as possible, longer ones first.

    Every number of microbatches is legal. Where torch accepts the number, the rounds are those of torch.
    """
    rounds = max(1, len(microbatches) // ranks)
    size, longer = divmod(len(microbatches), rounds)
    starts = [number * size + min(number, longer) for number in range(rounds + 1)]
    return (microbatches[start:end] for start, end in pairwise(starts))
