"""Rules of an experiment that need the keys of the whole configuration."""

from __future__ import annotations

from suite.config.run import RunConfig
from suite.core.errors import UnknownName
from suite.core.experiment import BATCHES, GRID, RANKS, SYSTEM


def panels_name_config_keys(config: RunConfig) -> None:
    """The points and curves of a panel are configuration keys. Keys below a group belong to the class it names."""
    groups = config.model_dump(by_alias=True)
    for place, panel in enumerate(config.experiment.panels):
        for name, value, special in (
            ("key", panel.key, (RANKS, GRID, BATCHES)),
            ("curve", panel.curve, (SYSTEM, GRID)),
        ):
            group = value.partition(".")[0]
            if value and value not in special and group not in groups:
                raise UnknownName(f"experiment.panels.{place}.{name}", value, [*special, *groups])
