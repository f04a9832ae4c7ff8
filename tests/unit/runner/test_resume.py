"""Resumed runs: earlier measurements, scores and checkpoint folders."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from suite.config.compose import resolve
from suite.config.protocols import System
from suite.core.trace import Trace
from suite.data.text import Text
from suite.runner.ranks import resume
from suite.workload import Transformer


class CountingSystem(System):
    """A system whose loss is the number of the batch, and whose checkpoints are entries of a dictionary."""

    def __init__(self, checkpoints: dict[str, Any]) -> None:
        self.checkpoints, self.trained, self.scored = checkpoints, 0, 0

    def train_batch(self, batch: int) -> float:
        self.trained += 1
        return float(batch)

    def evaluate(self, batches: Any) -> float:
        self.scored += 1
        return float(100 + self.trained)

    def observe(self) -> Trace:
        return Trace()

    def save(self, folder: str, *, keep: int, extra: Any) -> None:
        Path(folder, f"step-{len(extra['batches']):06d}").mkdir(parents=True)
        self.checkpoints[folder] = {name: list(values) for name, values in extra.items()}, keep

    def load(self, folder: str) -> Any:
        return SimpleNamespace(extra=self.checkpoints[folder][0], notes=("step-000009 is damaged",))


def make_rank(folder: Path | None, checkpoints: dict[str, Any], every: int = 2) -> Any:
    """A rank of a counting system, without a world."""
    from suite.runner.ranks.rank import RankProcess

    class CountingRank(RankProcess):
        def __init__(self) -> None:
            self.system = CountingSystem(checkpoints)
            changes = {"checkpoint.folder": folder and str(folder), "checkpoint.every": every, "checkpoint.keep": 3}
            self.config = resolve(["batch.size=1"]).changed(changes)
            self.data, self.shape = Text("nine", np.arange(9), np.arange(9)), Transformer(1, 2, 1, 2, 9)
            self.history, self.trained = resume.BatchHistory(self.config, self.system), 0

        def _batch(self, number: int) -> Any:
            return np.int64(number)

    return CountingRank()


def test_run_continues_from_its_last_checkpoint(tmp_path: Path) -> None:
    checkpoints: dict[str, Any] = {}
    first = make_rank(tmp_path, checkpoints)
    earlier = [first.train(2), first.train(3)]  # the last checkpoint is the one after batch 4
    assert checkpoints[str(tmp_path)][1] == 3
    resumed = make_rank(tmp_path, checkpoints)
    replies = [resumed.train(2), resumed.train(3), resumed.train(1)]
    assert [reply["losses"] for reply in replies] == [[0, 1], [2, 3, 4], [5]]
    assert replies[0]["durations"] == earlier[0]["durations"]
    assert replies[1]["durations"][:2] == earlier[1]["durations"][:2]
    assert replies[1]["durations"][2] != earlier[1]["durations"][2]
    assert resumed.system.trained == 2
    assert resumed.history.notes[0] == "step-000009 is damaged"
    assert resumed.history.notes[1].startswith("resumed after batch 4")
    assert len(checkpoints[str(tmp_path)][0]["batches"]) == 6


def test_scores_of_earlier_batches_come_from_the_checkpoint(tmp_path: Path) -> None:
    checkpoints: dict[str, Any] = {}

    def scores(rank: Any) -> list[float]:
        return [rank.train(1) and rank.evaluate(1)["scores"]["loss"] for _ in range(3)]

    assert scores(make_rank(tmp_path, checkpoints)) == [101, 102, 103]
    resumed = make_rank(tmp_path, checkpoints)  # after batch 2, which was validated after the checkpoint
    assert scores(resumed) == [101, 100, 101], "a new process counts from its own first batch"
    assert resumed.system.scored == 2
