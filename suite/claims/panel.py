"""Declared panels of published figures: our values, and the claims that print the same points.

@figure("axonn_table2", "Table II")
def table_2(lab, claims):
    yield Panel("best plan of axonn", "count", ["12b", "24b"], {"g_inter": [6, 12]}, "axonn.table2.{x}.axonn.{curve}")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from suite.claims import load
from suite.claims.claim import Claim, Evidence
from suite.config.panels import FigurePanel

NONE = math.nan  # missing point; the papers print few numbers of a curve
Curves = Mapping[str, Sequence[float]]
Claims = Mapping[str, Claim]


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel as its function yields it.

    Attributes:
        printed: Claim of each point: its id with {x} and {curve} for every curve of ours, or by curve a list of ids or
            one such pattern. An empty id stands for no claim, a number for itself, and `published` reads the others.
        figure: Published figure of this panel, if it is not that of the function.

    The others are those of FigurePanel."""

    title: str
    unit: str
    x: Sequence[str]
    ours: Curves
    printed: str | Mapping[str, str | Sequence[str | float]] = ""
    null: Curves = field(default_factory=dict)
    axis: str = field(kw_only=True)
    quantity: str = field(kw_only=True)
    scale: str = field(default="", kw_only=True)
    evidence: Evidence = field(default=Evidence.SIMULATED, kw_only=True)
    figure: str = field(default="", kw_only=True)

    def ids(self) -> dict[str, list[str | float]]:
        """Ids of the claims of the points, or printed numbers, by curve."""
        printed = self.printed if isinstance(self.printed, Mapping) else dict.fromkeys(self.ours, self.printed)
        return {
            curve: [ids.format(x=x, curve=curve) for x in self.x] if isinstance(ids, str) else list(ids)
            for curve, ids in printed.items()
            if ids
        }

    def shown(self, paper: str, figure: str, calibrated_on: Collection[str]) -> FigurePanel:
        """The panel for a record. Points whose claims are in `calibrated_on` are marked as calibrated."""
        ids, display = self.ids(), self.figure or figure
        return FigurePanel(
            title=self.title,
            unit=self.unit,
            x=self.x,
            ours=self.ours,
            paper={
                curve: [name if isinstance(name, float) else NONE for name in names]
                for curve, names in ids.items()
                if any(isinstance(name, float) for name in names)
            },
            null=self.null,
            calibrated=[
                (curve, i) for curve, names in ids.items() for i, name in enumerate(names) if _id(name) in calibrated_on
            ],
            axis=self.axis,
            quantity=self.quantity,
            scale=self.scale,
            evidence=self.evidence,
            figure=display,
            publication=load.titles()[paper] if display else "",
            printed={
                curve: ["" if isinstance(name, float) else name for name in names] for curve, names in ids.items()
            },
        )


Draw = Callable[[Any, Claims], Iterable[Panel]]
_FIGURES: dict[str, tuple[str, str, Draw]] = {}  # by name: the paper, the published figure, and its panels


def figure(name: str, display: str = "") -> Callable[[Draw], Draw]:
    """Register a function that yields the panels of figure `name`, which the paper prints as `display`."""

    def register(draw: Draw) -> Draw:
        _FIGURES[name] = draw.__module__.split(".")[-2], display, draw
        return draw

    return register


def figures() -> Mapping[str, tuple[str, str, Draw]]:
    """Paper, published figure and panel function of each figure, from the modules of the papers without torch."""
    for paper in load.papers():
        for path in sorted((load.FOLDER / paper).glob("*.py")):
            if not path.name.startswith("measured"):
                import_module(f"suite.papers.{paper}.{path.stem}")
    return _FIGURES


def published(claims: Claims, name: str | float) -> float:
    """Printed number of a claim, or the finite end of its open range; 'ID low' and 'ID high' are the ends of a range.

    nan where there is none, and in blind mode."""
    if isinstance(name, float):
        return name
    value = claims[_id(name)].value if _id(name) in claims else NONE
    if isinstance(value, tuple):
        low, high = value
        open_end = high if math.isinf(low) else low if math.isinf(high) else NONE
        value = {"low": low, "high": high}.get(name.partition(" ")[2], open_end)
    return value if isinstance(value, float) else NONE


def bound(claims: Claims, name: str) -> int:
    """1 for a claim that prints a lower bound alone, -1 for an upper one; 0 for others."""
    value = claims[_id(name)].value if _id(name) in claims else NONE
    return 0 if not isinstance(value, tuple) else math.isinf(value[1]) - math.isinf(value[0])


def _id(name: str | float) -> str:
    return str(name).partition(" ")[0]
