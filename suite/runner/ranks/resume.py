"""Resume a long run: checkpoints every few batches, together with the measurements so far.

`checkpoint.folder` holds a folder per run, by the key of its record, so that changed code or settings start from the
beginning. The same command resumes: the rank reports the losses and times of earlier batches as they were measured,
and the record notes it. A finished run keeps its last checkpoints under another name: measured again, it trains
again. Loads no torch."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from suite.config.run import RunConfig

Batch = tuple[float, float | None]  # seconds, loss


def placed(config: RunConfig, key: str) -> RunConfig:
    """The config of a run's ranks, whose checkpoints lie in a folder of its own."""
    if config.checkpoint.folder is None:
        return config
    folder = Path(config.checkpoint.folder).absolute() / key
    return config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"folder": str(folder)})})


def finished(config: RunConfig) -> None:
    """Of a run that is done: the same command finds nothing to go on from. config: as `placed` gives it."""
    if config.checkpoint.folder is None or not (folder := Path(config.checkpoint.folder)).is_dir():
        return
    done = folder.with_name(f"{folder.name}.finished")
    shutil.rmtree(done, ignore_errors=True)
    folder.rename(done)


class Resuming:
    """Batches that one rank has trained, in this process or an earlier one.

    Attributes:
        done: A batch after the other.
        scores: Of validation, by the number of batches trained before.
        notes: Notes for readers of the record.
    """

    def __init__(self, config: RunConfig, system: Any) -> None:
        checkpoint = config.checkpoint
        self.folder, self.every, self.keep = checkpoint.folder, checkpoint.every, checkpoint.keep
        self.system = system
        self.done: list[Batch] = []
        self.scores: dict[int, dict[str, float | None]] = {}
        self.notes: tuple[str, ...] = ()
        if self.folder is not None and any(Path(self.folder).glob("step-*")):
            loaded = system.load(self.folder)
            self.done = [(seconds, loss) for seconds, loss in loaded.extra["batches"]]
            self.scores = dict(loaded.extra["scores"])
            note = f"resumed after batch {len(self.done)}: earlier times and losses are those of a process that ended"
            self.notes = (*loaded.notes, note)

    def earlier(self, first: int, count: int) -> list[Batch]:
        """The batches that were trained before, among `count` batches from number `first`."""
        return self.done[first : first + count]

    def streamed(self, seconds: Sequence[float], losses: Sequence[float | None]) -> None:
        """The batches of a stream, which has drained; a checkpoint is due where one would have been within it."""
        if self.folder is not None and seconds:
            before = len(self.done) // self.every
            self.done += zip(seconds, losses, strict=True)
            if len(self.done) // self.every > before:
                self._save()

    def trained(self, seconds: float, loss: float | None) -> float:
        """Count one more batch; returns the time when the next one begins, so that writing in between is excluded."""
        if self.folder is not None:
            self.done.append((seconds, loss))
            if len(self.done) % self.every == 0:
                self._save()
        return perf_counter()

    def _save(self) -> None:
        self.system.save(self.folder, keep=self.keep, extra={"batches": self.done, "scores": list(self.scores.items())})
