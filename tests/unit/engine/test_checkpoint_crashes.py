"""Checkpoint storage: a process killed at any step leaves the last complete checkpoint.

Each child process is a fork that saves until its n-th disk operation and exits there, without any cleanup. A write that
is interrupted leaves half of its data.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite.comm.p2p import threads
from suite.engine.checkpoint import storage
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD
from tests.support.resuming import RankState, rank_state

DIED = 9


def engine_of() -> Engine:
    layers = [lambda: nn.Linear(3, 2), lambda: nn.BatchNorm1d(2)]
    world = threads.LoopbackWorld(threads.Hub(1), 0)
    return Engine(layers, loss=F.mse_loss, optimizer=SGD(0.1, momentum=0.5), microbatch=2, world=world)


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(4, 3, generator=generator), torch.randn(4, 2, generator=generator)


def trained(engine: Engine, *numbers: int) -> Engine:
    for number in numbers:
        engine.train_batch(batch(number))
    return engine


class Dying:
    """Disk operations that exit the process after `remaining` operations; a write counts as two halves."""

    def __init__(self, remaining: int) -> None:
        self.remaining = remaining

    def step(self) -> None:
        if self.remaining == 0:
            os._exit(DIED)
        self.remaining -= 1

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **more: Any) -> Any:
            self.step()
            return function(*arguments, **more)

        return called

    def open(self, path: Path, mode: str) -> Any:
        self.step()
        file = open(path, mode)  # noqa: SIM115
        dying = self

        class Torn:
            flush, fileno = file.flush, file.fileno

            def __enter__(self) -> Torn:
                return self

            def __exit__(self, *problem: object) -> None:
                file.close()

            def write(self, data: bytes) -> None:
                dying.step()
                file.write(data[: len(data) // 2])
                file.flush()
                dying.step()
                file.write(data[len(data) // 2 :])

        return Torn()

    def remove(self, tree: Path, ignore_errors: bool = False) -> None:
        for path in sorted(tree.iterdir()):
            self.step()
            path.unlink()
        self.step()
        tree.rmdir()


def save_and_die(engine: Engine, folder: Path, at: int) -> int:
    """Exit code of a child that saves and exits at its operation `at`; 0 if saving takes fewer operations."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        dying = Dying(at)
        storage.open = dying.open  # type: ignore[attr-defined]
        storage.shutil.rmtree = dying.remove  # type: ignore[assignment]
        for name in ("rename", "mkdir", "unlink", "write_text"):
            setattr(Path, name, dying.before(getattr(Path, name)))
        os.fsync = dying.before(os.fsync)
        engine.save(folder, keep=2)
        os._exit(0)
    finally:
        os._exit(1)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """Checkpoints 1, 2 and 3, and an unfinished fourth of a killed process."""
    folder = tmp_path / "before"
    engine = engine_of()
    for number in range(3):
        trained(engine, number).save(folder)
    unfinished = folder / ".step-000004.unfinished"
    shutil.copytree(folder / "step-000003", unfinished)
    (unfinished / storage.MANIFEST).unlink()
    return folder


def test_crash_at_any_write_leaves_complete_checkpoint(before: Path, tmp_path: Path) -> None:
    """The save replaces a checkpoint of the same update and removes an older one, so it has every kind of step."""
    saving = trained(engine_of(), 0, 1, 7)
    last: RankState = rank_state(trained(engine_of(), 0, 1, 2))
    new = rank_state(saving)
    outcomes: list[str] = []
    code = DIED
    while code == DIED:
        folder = tmp_path / f"{len(outcomes)}"
        shutil.copytree(before, folder)
        code = save_and_die(saving, folder, len(outcomes))
        engine = engine_of()
        loaded = engine.load(folder)
        assert loaded.notes == (), f"operation {len(outcomes)}: {loaded.notes}"
        loaded = rank_state(engine)
        is_new = all(torch.equal(loaded.tensors[name], tensor) for name, tensor in new.tensors.items())
        (new if is_new else last).compare(loaded, f"operation {len(outcomes)}")
        outcomes.append("new" if is_new else "last")
        for path in (storage.path_of(folder, order) for order in storage.checkpoint_orders(folder)):
            for name, written in storage.manifest(path)["files"].items():
                storage.read_file(path, name, written)  # every named checkpoint is complete, also an old one
        saving.save(folder, keep=2)  # the next save is complete despite leftovers
        assert engine.load(folder).notes == ()
        new.compare(rank_state(engine), f"after operation {len(outcomes)}")
        assert sorted(path.name for path in folder.iterdir()) == ["step-000002", "step-000003"]
    assert code == 0, code
    turn = outcomes.index("new")
    assert outcomes == ["last"] * turn + ["new"] * (len(outcomes) - turn)
    assert turn > 20, "the test did not reach every file, half and rename"
    assert len(outcomes) - turn > 5, "the test did not reach the removal of older checkpoints"


def test_checkpoint_names_and_order() -> None:
    assert [storage.is_step(Path(name)) for name in ("a/step-000001", "step-1234567", "step-000001.old")] == [True] * 3
    assert not any(
        storage.is_step(Path(name)) for name in ("step-1", ".step-000001.unfinished", "step-000001.new", "a")
    )
    place = storage.unfinished_path(Path("a"), 12)
    assert (place, storage.finished_path(place)) == (Path("a/.step-000012.unfinished"), Path("a/step-000012"))
    assert [storage.path_of(Path("a"), order) for order in (24, 25)] == [
        Path("a/step-000012.old"),
        Path("a/step-000012"),
    ]


def test_checkpoints_are_ordered_by_updates(tmp_path: Path) -> None:
    for name in (
        "step-999999",
        "step-1000000",
        "step-000100",
        "step-000007.old",
        "step-000007",
        "others",
        ".step-000009.unfinished",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "step-000008").write_text("a file")
    loaded = [storage.path_of(tmp_path, order).name for order in storage.checkpoint_orders(tmp_path)]
    assert loaded == ["step-000007.old", "step-000007", "step-000100", "step-999999", "step-1000000"]
    assert storage.checkpoint_orders(tmp_path / "nowhere") == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="/proc lists the names of open files")
def test_files_are_synced_before_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order of syncs and rename, which protects against a power failure that no killed process shows."""
    seen: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def noted(descriptor: int) -> None:
        seen.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def renamed(path: Path, to: Path) -> Path:
        seen.append(f"rename {to.name}")
        return rename(path, to)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "rename", renamed)
    path = engine_of().save(tmp_path)
    files = {file.name for file in path.iterdir()}
    assert set(seen[: seen.index("rename step-000000")]) == files | {".step-000000.unfinished"}
    assert seen[-4:] == [storage.MANIFEST, ".step-000000.unfinished", "rename step-000000", tmp_path.name]
