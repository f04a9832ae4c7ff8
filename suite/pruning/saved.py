"""Decides what a stage takes of a ticket in a file, once it is known as one of this model.

A ticket is drawn once and trained often: on other grids, by other systems, beside a sparse baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suite.core.errors import Refused
from suite.pruning.ticket import Indices, View, check_model, load


@dataclass(frozen=True)
class Saved:
    """The ticket that suite.pruning.ticket.save wrote to `path`, which every rank sees.

    What was drawn by channels names batch norms, and leaves other weights dense; any other names all that may be
    pruned.
    """

    path: str

    def due(self, batches: int) -> bool:
        return batches == 0

    def draw(self, view: View) -> Indices:
        """Raises Refused for a file that holds no ticket, and for a ticket of another model."""
        indices, entries = load(Path(self.path))
        numbers = {number for number, _ in view.layers}
        own = {key: index for key, index in indices.items() if key[0] in numbers}
        last = max(numbers, default=-1)
        if view.stage == view.stages - 1 and any(number > last for number, _ in indices):
            most = max(number for number, _ in indices)
            raise Refused(f"{self.path} prunes layer {most}, the last is {last}", rule="a ticket of this model")
        wanted = set(own) if set(own) - set(view.keys) else set(view.keys)
        known = {(number, name) for number, layer in view.layers for name, _ in layer.named_parameters()}
        for number, name in sorted(wanted - known):
            raise Refused(f"{self.path} prunes {name} of layer {number}, which has none", rule="a ticket of this model")
        check_model(self.path, entries, {key: view.weight(key).numel() for key in sorted(wanted)})
        return {key: own[key].to(view.weight(key).device) for key in sorted(wanted)}
