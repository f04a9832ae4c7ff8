"""Decides what a system that is only modelled answers to ranks: that it runs on modelled machines, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from suite.core.errors import Unsupported
from suite.core.protocols import Value, World


class OnlyModelled:
    """A system of conf/modelled that has no ranks yet; whatever is asked of it is refused."""

    def __init__(self, world: World, config: Mapping[str, Any]) -> None:
        self.probe(config)

    @classmethod
    def probe(cls, config: Mapping[str, Any]) -> NoReturn:
        raise Unsupported(
            f"system={config['system']['name']} on real ranks", rule="it is modelled only", legal="executor=simulated"
        )

    def train_batch(self, batch: Value) -> float:
        raise NotImplementedError

    def evaluate(self, batches: Sequence[Value]) -> float:
        raise NotImplementedError

    def observe(self) -> Any:
        raise NotImplementedError

    def memory(self, batch: Value) -> tuple[float, dict[str, int]]:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing was opened."""
