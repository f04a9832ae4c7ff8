"""Checkpoint storage: a process killed at any step leaves the last complete checkpoint.

Each child process is a fork that saves until its n-th disk operation and exits there, without any cleanup. A file that
was not yet synced loses half of its data.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite import SGD, Engine
from suite.engine.checkpoint import files
from suite.engine.checkpoint.save import STATE
from tests.support.drawn import generator
from tests.support.resuming import RankState, rank_state
from tests.support.small_engines import normal_batches

DIED = 9
WRITES = 16  # operations before the manifest and the rename: a few of them are drawn, and all later ones are tried
CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir")  # events of sys.addaudithook


def engine_of() -> Engine:
    layers = [lambda: nn.Linear(3, 2), lambda: nn.BatchNorm1d(2)]
    return Engine(layers, loss=F.mse_loss, optimizer=SGD(0.1, momentum=0.5), microbatch=2)


def trained(engine: Engine, *numbers: int) -> Engine:
    for number in numbers:
        engine.train_batch(*normal_batches(1, 4, 3, 2, torch.float32, seed=number))
    return engine


def save_and_die(engine: Engine, folder: Path, at: int) -> int:
    """Exit code of a child that saves and exits at its operation `at`; 0 if saving takes fewer operations."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    remaining, fsync = at, os.fsync

    def step(event: str, arguments: Any) -> None:
        nonlocal remaining
        writes = event == "open" and str(arguments[0]).startswith(str(folder)) and arguments[2] & os.O_WRONLY
        if event in CHANGES or writes or event == "sync":
            if remaining == 0:
                os._exit(DIED)
            remaining -= 1

    def sync(descriptor: int) -> None:
        if remaining == 0:
            with suppress(OSError):  # of a folder
                os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
        step("sync", ())
        fsync(descriptor)

    try:
        os.fsync = sync
        sys.addaudithook(step)
        engine.save(folder, keep=2)
        os._exit(0)
    finally:
        os._exit(1)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """Checkpoints 1, 2 and 3, and an unfinished fourth of a killed process."""
    folder, engine = tmp_path / "before", engine_of()
    for number in range(3):
        trained(engine, number).save(folder)
    unfinished = folder / ".step-000004.unfinished"
    shutil.copytree(folder / "step-000003", unfinished)
    (unfinished / STATE).unlink()
    return folder


def test_crash_at_any_write_leaves_complete_checkpoint(before: Path, tmp_path: Path) -> None:
    """The save replaces a checkpoint of the same update and removes an older one, so it has every kind of step."""
    saving = trained(engine_of(), 0, 1, 7)
    states = {
        "earlier": rank_state(trained(engine_of(), 0, 1)),
        "last": rank_state(trained(engine_of(), 0, 1, 2)),
        "new": rank_state(saving),
    }

    def outcome(at: int) -> str:
        folder = tmp_path / f"{at}"
        shutil.copytree(before, folder)
        code = save_and_die(saving, folder, at)
        engine = engine_of()
        for step in files.steps(folder):  # every named checkpoint is complete
            engine.load(files.path_of(folder, step))
        loaded = rank_state(engine)
        (name,) = (name for name, state in states.items() if equal(state, loaded))
        saving.save(folder, keep=2)  # the next save is complete despite leftovers
        engine.load(folder)
        assert equal(states["new"], rank_state(engine)), f"after operation {at}"
        assert sorted(path.name for path in folder.iterdir()) == ["step-000002", "step-000003"]
        shutil.rmtree(folder)
        return "saved" if code == 0 else name

    assert {outcome(at) for at in generator("crashes").sample(range(WRITES), 5)} == {"last"}
    outcomes = [outcome(WRITES)]
    while outcomes[-1] != "saved":
        outcomes.append(outcome(WRITES + len(outcomes)))
    turn, end = outcomes.index("earlier"), len(outcomes) - 1  # between the renames of the old and the new one
    assert outcomes == ["last"] * turn + ["earlier"] + ["new"] * (end - turn - 1) + ["saved"]
    assert turn > 0, "no crash before the rename"
    assert end - turn > 5, "no crash within the removal of older checkpoints"


def equal(state: RankState, other: RankState) -> bool:
    return state.counts == other.counts and all(torch.equal(t, other.tensors[n]) for n, t in state.tensors.items())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="/proc lists the names of open files")
def test_files_are_synced_before_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order of syncs and rename, which protects against a power failure that no killed process shows."""
    seen: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        seen.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def renamed(event: str, arguments: Any) -> None:
        if event == "os.rename" and str(arguments[1]).startswith(str(tmp_path)) and tmp_path.exists():
            seen.append(f"rename {Path(arguments[1]).name}")

    monkeypatch.setattr(os, "fsync", noted)
    sys.addaudithook(renamed)
    path = engine_of().save(tmp_path)
    for file in path.iterdir():
        assert file.name in seen[seen.index(f"rename {file.name}") - 1], (file, seen)
    assert seen[-4:] == [f"rename {STATE}", ".step-000000.unfinished", "rename step-000000", tmp_path.name]
