"""Resumed runs keep their earlier measurements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from suite.config.compose import composed, resolve
from suite.config.protocols import System
from suite.core.errors import InvalidRequest
from suite.core.trace import Trace
from suite.data.text import Text
from suite.runner.ranks import resume
from suite.runner.runs import freeze
from suite.runner.store import key_of
from suite.workload import Transformer

FOLDER = "checkpoint.folder=somewhere"


class Counting(System):
    """A system whose loss is the number of the batch, and whose checkpoints are lists."""

    def __init__(self, shelf: dict[str, Any]) -> None:
        self.shelf, self.trained, self.scored = shelf, 0, 0

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
        self.shelf[folder] = {name: list(items) for name, items in extra.items()}, keep

    def load(self, folder: str) -> Any:
        return SimpleNamespace(extra=self.shelf[folder][0], notes=("step-000009 is damaged",))


def rank_of(folder: Path | None, shelf: dict[str, Any], every: int = 2) -> Any:
    """A rank that was given no network and no text."""
    from suite.runner.ranks.rank import RankProcess

    class Bare(RankProcess):
        def __init__(self) -> None:
            self.system = Counting(shelf)
            changes = {"checkpoint.folder": folder and str(folder), "checkpoint.every": every, "checkpoint.keep": 3}
            self.config = resolve(["batch.size=1"]).changed(changes)
            self.data, self.shape = Text("nine", np.arange(9), np.arange(9)), Transformer(1, 2, 1, 2, 9)
            self.resuming, self.seen = resume.Resuming(self.config, self.system), 0

        def _batch(self, number: int) -> Any:
            return np.int64(number)

    return Bare()


def test_a_run_goes_on_where_the_last_checkpoint_stands(tmp_path: Path) -> None:
    shelf: dict[str, Any] = {}
    first = rank_of(tmp_path, shelf)
    told = [first.train(2), first.train(3)]  # ended after batch 4, whose checkpoint is the last
    assert shelf[str(tmp_path)][1] == 3
    again = rank_of(tmp_path, shelf)
    answers = [again.train(2), again.train(3), again.train(1)]
    assert [answer["losses"] for answer in answers] == [[0, 1], [2, 3, 4], [5]]
    assert answers[0]["durations"] == told[0]["durations"], "times are those of then"
    assert answers[1]["durations"][:2] == told[1]["durations"][:2]
    assert answers[1]["durations"][2] != told[1]["durations"][2]
    assert again.system.trained == 2
    assert again.resuming.notes == (
        "step-000009 is damaged",
        "resumed after batch 4: earlier times and losses are those of a process that ended",
    )
    assert len(shelf[str(tmp_path)][0]["batches"]) == 6


def test_a_validation_of_then_is_not_made_with_the_weights_of_now(tmp_path: Path) -> None:
    shelf: dict[str, Any] = {}
    first = rank_of(tmp_path, shelf)
    scores = []
    for _ in range(3):
        first.train(1)
        scores.append(first.evaluate(1)["scores"]["loss"])
    assert scores == [101, 102, 103]
    again = rank_of(tmp_path, shelf)  # after batch 2, whose validation came after the checkpoint
    found = []
    for _ in range(3):
        again.train(1)
        found.append(again.evaluate(1)["scores"]["loss"])
    assert found[0] == 101
    assert (found[1:], again.system.scored) == ([100, 101], 2), "a new process counts from its own first batch"


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    shelf: dict[str, Any] = {}
    rank = rank_of(None, shelf, every=1)
    assert rank.train(3)["losses"] == [0, 1, 2]
    assert (shelf, rank.resuming.done, rank.resuming.notes) == ({}, [], ())


def test_the_time_of_a_checkpoint_is_no_batchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    for module in ("rank", "resume"):
        monkeypatch.setattr(f"suite.runner.ranks.{module}.perf_counter", lambda: now[0])

    def taking(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **more: Any) -> Any:
            now[0] += seconds
            return function(*arguments, **more)

        return called

    rank = rank_of(tmp_path, {})
    rank.system.save = taking(100.0, rank.system.save)
    rank.system.train_batch = taking(1.0, rank.system.train_batch)
    assert rank.train(5)["durations"] == [1.0] * 5


@pytest.mark.parametrize("value", ["every=0", "every=2.5", "keep=0", "keep=null"])
def test_numbers_that_are_none(value: str) -> None:
    name = value.partition("=")[0]
    with pytest.raises(InvalidRequest, match=rf"checkpoint\.{name}=.*; legal: checkpoint\.{name}=1"):
        resolve([FOLDER, f"checkpoint.{value}"])


def test_a_folder_per_run_and_none_for_one_that_is_done(tmp_path: Path) -> None:
    usual_run, run = freeze(composed([]), ""), freeze(composed([f"checkpoint.folder={tmp_path}"]), "")
    assert key_of(run.settings, {}) == key_of(usual_run.settings, {}), "where checkpoints lie decides no number"
    usual, placed = usual_run.config, resume.placed(run.config, "abc")
    assert placed == run.config.changed({"checkpoint.folder": str(tmp_path / "abc")})
    assert resume.placed(usual, "abc") == usual
    resume.finished(placed)  # shorter than its first checkpoint
    for turn in range(2):
        (tmp_path / "abc" / f"step-00000{turn}").mkdir(parents=True)
        resume.finished(placed)
        assert [path.name for path in tmp_path.iterdir()] == ["abc.finished"]
        assert [path.name for path in (tmp_path / "abc.finished").iterdir()] == [f"step-00000{turn}"]
    resume.finished(usual)
