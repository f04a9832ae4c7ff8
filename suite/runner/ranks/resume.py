"""Resume a long run: checkpoints every few batches, together with the measurements so far.

`checkpoint.folder` holds one folder per run. Its name is the key of the run's record, so a run with changed code or
settings starts from the beginning. A resumed rank reports the measured losses and times of earlier batches, and the
record has a note about it. A finished run renames its folder, so that the next measurement trains from the beginning.
This module does not load torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.config.run import RunConfig

TimedLoss = tuple[float, float | None]  # seconds and loss of a batch


def with_run_folder(config: RunConfig, key: str) -> RunConfig:
    """The configuration of a run's ranks, with the checkpoint folder of this run."""
    folder = config.checkpoint.folder
    return config if folder is None else config.changed({"checkpoint.folder": str(Path(folder).absolute() / key)})


def retire_checkpoints(config: RunConfig) -> None:
    """Rename the checkpoint folder of a finished run, so that the same command does not resume from it.

    `config` comes from `with_run_folder`.
    """
    if config.checkpoint.folder is None or not (folder := Path(config.checkpoint.folder)).is_dir():
        return
    retired = folder.with_name(f"{folder.name}.finished")
    shutil.rmtree(retired, ignore_errors=True)
    folder.rename(retired)


class BatchHistory:
    """Batches that a rank has trained, in this process or an earlier one.

    Attributes:
        batches: Seconds and loss of each batch.
        scores: Validation scores by the number of batches trained before.
        notes: Notes for readers of the record.
    """

    def __init__(self, config: RunConfig, system: Any) -> None:
        checkpoint = config.checkpoint
        self.folder, self.interval, self.keep = checkpoint.folder, checkpoint.every, checkpoint.keep
        self.system = system
        self.batches: list[TimedLoss] = []
        self.scores: dict[int, dict[str, float | None]] = {}
        self.notes: tuple[str, ...] = ()
        if self.folder is not None and any(Path(self.folder).glob("step-*")):
            loaded = system.load(self.folder)
            self.batches = [(seconds, loss) for seconds, loss in loaded.extra["batches"]]
            self.scores = dict(loaded.extra["scores"])
            note = f"resumed after batch {len(self.batches)}: an earlier process measured the times and losses before"
            self.notes = (*loaded.notes, note)

    def add(self, batches: Sequence[TimedLoss]) -> None:
        """Add batches of one drain, and save a checkpoint if they have passed a checkpoint interval."""
        if self.folder is not None and batches:
            due_before = len(self.batches) // self.interval
            self.batches += batches
            if len(self.batches) // self.interval > due_before:
                self._save()

    def _save(self) -> None:
        extra = {"batches": self.batches, "scores": list(self.scores.items())}
        self.system.save(self.folder, keep=self.keep, extra=extra)
