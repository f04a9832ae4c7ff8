"""Checkpoints: content, and rejection without any change. tests/laws/test_resume.py compares resumed runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from suite import SGD, Adam, AdamW, DynamicLossScaler, Engine, Grid, WarmupCosine
from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest, RankError, Unsupported
from suite.core.protocols import Read, WeightPolicy
from suite.engine.checkpoint import storage
from tests.support.cases import Case, gpt_case, odd_case
from tests.support.refusals import refused
from tests.support.resuming import batch_of, engine_of, rank_state, trained

TIED = gpt_case("tied", "float32", layers=1)
ODD = odd_case(torch.float32)
FIRST, SECOND = "step-000001", "step-000002"


def make_engine(case: Case = ODD, world: Any = None, grid: Grid | None = None, **more: Any) -> Engine:
    world = world or threads.LoopbackWorld(threads.Hub(1), 0)
    return engine_of(case, world, grid or Grid(inter=world.size), **{"optimizer": AdamW(0.01), **more})


def taught(folder: Path, batches: int = 1, case: Case = ODD, **more: Any) -> Engine:
    """An engine that trained and saved a checkpoint after every batch."""
    engine = make_engine(case, **more)
    for number in range(batches):
        engine.train_batch(batch_of(case, number))
        engine.save(folder)
    return engine


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def untouched(engine: Engine, action: Callable[[], Any], *words: str) -> str:
    """Assert that the action raises InvalidRequest with these words and does not change the engine; the legal value."""
    before, state = rank_state(engine), torch.get_rng_state()
    with pytest.raises(InvalidRequest) as caught:
        action()
    assert all(word in str(caught.value) for word in words), (words, caught.value)
    before.compare(rank_state(engine), str(words))
    assert torch.equal(torch.get_rng_state(), state)
    assert engine.state.evaluated == 0
    return caught.value.legal


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_checkpoint_has_full_precision_files_of_every_stage_and_replica(tmp_path: Path) -> None:
    run = {"half": "bfloat16", "optimizer": SGD(0.1, momentum=0.9), "save": tmp_path}
    threads.run(4, lambda world: trained(TIED, world, Grid(inter=2, data=2), range(1), **run))
    files = {name: load_file(tmp_path / FIRST / name) for name in names(tmp_path / FIRST) if name != storage.MANIFEST}
    assert [*files] == [
        *(f"layer-{number:05d}.safetensors" for number in range(3)),
        *(f"rank-{rank:05d}-replica-{replica:05d}.safetensors" for rank in (0, 1) for replica in (0, 1)),
    ]
    first, last = files["layer-00000.safetensors"], files["layer-00002.safetensors"]
    for state in ("weight", "velocity"):
        assert torch.equal(first[f"{state}/token.weight"], last[f"{state}/weight"]), "both ends of a tie are kept"
    weight = first["weight/token.weight"]
    assert weight.dtype == torch.float32
    assert not torch.equal(weight, weight.bfloat16().float())


def frozen(bias: bool = False, half: str | None = None) -> Engine:
    torch.manual_seed(2)
    layers = [nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)]
    layers[0].bias.requires_grad_(bias)
    return Engine(layers, loss=F.cross_entropy, optimizer=SGD(0.1), microbatch=3, half=half)


@pytest.mark.parametrize("half", [None, "bfloat16"])
def test_checkpoint_holds_frozen_weights_and_buffers(half: str | None, tmp_path: Path) -> None:
    first, again = frozen(half=half), frozen(half=half)
    with torch.no_grad():
        first.state.stage.layers[0].bias.add_(1.0)  # as if the user had loaded it from another file
    first.train_batch(batch_of(ODD, 0))
    first.evaluate([batch_of(ODD, 1)])
    first.save(tmp_path)
    loaded = again.load(tmp_path)
    rank_state(first).compare(rank_state(again), "frozen")
    assert again.state.evaluated == first.state.evaluated > 0
    assert (loaded.path, loaded.updates, loaded.samples) == (tmp_path / FIRST, 1, 18)
    assert float(again.state.stage.layers[1].num_batches_tracked) == 6
    layer = load_file(tmp_path / FIRST / "layer-00000.safetensors")
    assert {name for name in layer if name.endswith("bias")} == {"weight/bias"}
    trained = frozen(bias=True, half=half)
    untouched(trained, lambda: trained.load(tmp_path), "layer 0 ", "velocity/bias None, this engine has ['float32', 5]")


def test_extra_data_returns_to_same_rank(tmp_path: Path) -> None:
    def rank(world: Any) -> Any:
        engine = make_engine(ODD, world)
        if world.size == 2:
            engine.save(tmp_path, extra={"rank": world.rank, "losses": [0.1, float("inf")]})
        return engine.load(tmp_path).extra

    assert threads.run(2, rank) == [{"rank": rank, "losses": [0.1, float("inf")]} for rank in (0, 1)]
    assert threads.run(1, rank)[0]["rank"] == 0


def test_save_keeps_newest_checkpoints_and_replaces_equal_ones(tmp_path: Path) -> None:
    engine = make_engine()
    for number in range(4):
        engine.train_batch(batch_of(ODD, number))
        engine.save(tmp_path, keep=2)
    for keep in (0, -1, 1.5):
        with refused(InvalidRequest, "keep", str(keep)):
            engine.save(tmp_path, keep=keep)  # type: ignore[arg-type]
    assert names(tmp_path) == ["step-000003", "step-000004"]
    for case in (ODD, TIED):
        taught(tmp_path / "one", case=case)
    assert names(tmp_path / "one") == [FIRST]
    make_engine(TIED).load(tmp_path / "one")


# -- what is refused -------------------------------------------------------------------------------------------------


def odd_with(number: int, layer: Callable[[], nn.Module]) -> dict[str, Case]:
    return {"case": Case("", [*ODD.layers[:number], layer, *ODD.layers[number + 1 :]], F.cross_entropy, ODD.sample, 3)}


RULES = "suite.engine.optim.optimizer"
WIDER = odd_with(6, lambda: nn.Linear(3, 4, bias=False))
CASES: list[tuple[dict[str, Any], str, str]] = [
    (WIDER, "moment_1/weight ['float32', 3, 3]", "['float32', 4, 3]"),
    (odd_with(6, lambda: nn.Linear(3, 3)), "moment_1/bias None", "['float32', 3]"),
    (odd_with(0, lambda: nn.BatchNorm1d(7, affine=False)), "moment_1/bias ['float32', 7]", "None"),
    ({"case": odd_case(torch.float64)}, "buffer/running_mean ['float32', 7]", "['float64', 7]"),
    ({"case": TIED}, "layers=7", "layers=3"),
    ({"seed": 6}, "seed=5", "seed=6"),
    ({"microbatch": 1}, "microbatch=3", "microbatch=1"),
    ({"optimizer": AdamW(0.02)}, "optimizer.lr=0.01", "optimizer.lr=0.02"),
    ({"optimizer": Adam(0.01)}, f"optimizer._target_={RULES}.AdamW", f"optimizer._target_={RULES}.Adam"),
    ({"optimizer": AdamW(WarmupCosine(0.01, total=9))}, "optimizer.lr=0.01", "optimizer.lr=None"),
    ({"half": "bfloat16"}, "half=None", "half=bfloat16"),
    ({"clip_norm": 1.0}, "clip_norm=None", "clip_norm=1.0"),
]


def test_checkpoint_of_another_run_is_rejected_without_change(tmp_path: Path) -> None:
    taught(tmp_path)
    for more, saved, current in CASES:
        engine = make_engine(**more)
        for path in (tmp_path, tmp_path / FIRST):
            assert saved in untouched(engine, lambda e=engine, p=path: e.load(p), saved, f"engine has {current}")


def test_checkpoint_with_other_tie_or_loss_scale_is_rejected(tmp_path: Path) -> None:
    taught(tmp_path / "tied", case=TIED)
    untied = make_engine(TIED, tied=())
    untouched(untied, lambda: untied.load(tmp_path / "tied"), "tied=[[0, 'token.weight', 2, 'weight']]")
    more = {"optimizer": SGD(0.1), "half": "float16"}
    taught(tmp_path / "scaled", loss_scaler=DynamicLossScaler(4.0), **more)
    other = make_engine(loss_scaler=DynamicLossScaler(4.0, patience=7), **more)
    untouched(other, lambda: other.load(tmp_path / "scaled"), "scaler.patience=200", "scaler.patience=7")


def test_replicas_must_divide_trained_microbatches(tmp_path: Path) -> None:
    taught(tmp_path)  # 6 microbatches

    def rank(world: Any) -> None:
        engine = make_engine(ODD, world, Grid(data=4))
        with refused(InvalidRequest, subject="after 6 microbatches", legal="1, 2, 3, 6 replicas"):
            engine.load(tmp_path)
        assert engine.state.updates == engine.state.model_states.rule.updates == 0

    threads.run(4, rank)


def test_load_error_of_one_stage_raises_on_every_rank(tmp_path: Path) -> None:
    """Layer 6 is on the second stage, so the first stage alone could load."""
    taught(tmp_path, 2)

    def rank(world: Any) -> None:
        engine = make_engine(WIDER["case"], world)
        world.all_reduce_scalar(0.0, "sum", lambda: None)  # both ranks seed the process's generator for their layers
        words = "layer 6" if world.rank else "rank 1 failed and reports the reason"
        untouched(engine, lambda: engine.load(tmp_path), words)

    threads.run(2, rank)
    flipped(tmp_path / SECOND / "layer-00006.safetensors")

    def damaged(world: Any) -> list[str]:
        engine = make_engine(ODD, world)
        with refused(InvalidRequest, subject=SECOND):
            engine.load(tmp_path / SECOND)
        return [*engine.load(tmp_path).notes, str(engine.state.updates)]

    first, second = threads.run(2, damaged)
    assert first == [f"{SECOND} has a damaged file, which another rank reports", "1"]
    assert "layer-00006" in second[0]


def test_missing_checkpoint_and_other_schema_are_rejected(tmp_path: Path) -> None:
    engine = make_engine()
    for path in (tmp_path, tmp_path / "nowhere"):
        untouched(engine, lambda p=path: engine.load(p), "no checkpoint in ")
    untouched(engine, lambda: engine.load(tmp_path / "step-000009"), "step-000009 has no manifest.json")
    taught(tmp_path)
    path = tmp_path / FIRST / storage.MANIFEST
    text = path.read_text()
    body = json.loads(text)["body"] | {"schema": 7}
    path.write_text(json.dumps({"sha256": storage.digest(json.dumps(body, sort_keys=True).encode()), "body": body}))
    untouched(engine, lambda: engine.load(tmp_path), f"{FIRST} has schema 7", "reads schema 2")
    path.write_text(text.replace('"steps": 1,', '"steps": 8,'))
    untouched(engine, lambda: engine.load(path.parent), "manifest.json does not have its own SHA-256")


def test_interrupted_batch_prevents_save_and_load(tmp_path: Path) -> None:
    taught(tmp_path)
    engine = make_engine()
    x, y = batch_of(ODD, 0)
    y[-1] = 77
    with pytest.raises(IndexError):
        engine.train_batch((x, y))
    for call in (engine.save, engine.load):
        untouched(engine, lambda c=call: c(tmp_path), "until the pipeline drains")
    assert names(tmp_path) == [FIRST]


class Stashing(WeightPolicy):
    """A policy that keeps reading the first version."""

    def read(self, op: Any, versions: Any) -> Read:
        return Read(versions.updates)

    def needed(self, versions: Any) -> frozenset[int]:
        return frozenset({0})


def test_older_weight_version_prevents_save(tmp_path: Path) -> None:
    engine = make_engine(weights=Stashing())
    engine.train_batch(batch_of(ODD, 0))
    with refused(Unsupported, subject="weight versions (0, 1) updates before the newest"):
        engine.save(tmp_path)
    assert names(tmp_path) == []


# -- what is damaged -------------------------------------------------------------------------------------------------


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: list[Callable[[Path], Any]] = [
    flipped,
    lambda path: path.write_bytes(path.read_bytes()[:-1]),
    lambda path: path.write_bytes(b""),
    Path.unlink,
]


def test_damaged_file_falls_back_to_previous_checkpoint(tmp_path: Path) -> None:
    engine = make_engine()
    saved = []
    for number in range(2):
        engine.train_batch(batch_of(ODD, number))
        engine.save(tmp_path)
        saved.append(rank_state(engine))
    newest = tmp_path / SECOND
    assert len(names(newest)) == 7 + 1 + 1
    for number, name in enumerate(names(newest)):
        whole = (newest / name).read_bytes()
        for damage in DAMAGES if name.startswith("manifest") else (DAMAGES[number % 4],):
            damage(newest / name)
            again = make_engine()
            untouched(again, lambda e=again: e.load(newest), SECOND, name)
            loaded = again.load(tmp_path)
            assert loaded.path.name == FIRST
            (note,) = loaded.notes
            assert SECOND in note
            assert name in note
            saved[0].compare(rank_state(again), name)
            (newest / name).write_bytes(whole)
    again = make_engine()
    assert again.load(tmp_path).notes == ()
    saved[1].compare(rank_state(again), "mended")
    for step in (FIRST, SECOND):
        flipped(tmp_path / step / "layer-00001.safetensors")
    words = "no checkpoint in ", f"{SECOND}/layer-00001.safetensors has SHA-256", f"{FIRST}/layer-00001"
    untouched(again, lambda: again.load(tmp_path), *words)


# -- a folder that one rank cannot write -----------------------------------------------------------------------------


def test_write_error_raises_on_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, failed = storage.write_file, list[Path]()

    def full_once(path: Path, data: bytes) -> Any:
        if path.name == "layer-00006.safetensors" and path.parent.name.startswith(f".{SECOND}") and not failed:
            failed.append(path)
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(storage, "write_file", full_once)

    def rank(world: Any) -> list[str]:
        engine = make_engine(ODD, world)
        engine.train_batch(batch_of(ODD, 0))
        engine.save(tmp_path)
        engine.train_batch(batch_of(ODD, 1))
        with pytest.raises((OSError, RankError)) as caught:
            engine.save(tmp_path)
        world.all_reduce_scalar(0.0, "sum", lambda: None)  # rank 0 has removed the unfinished files
        remaining = names(tmp_path)
        engine.save(tmp_path)
        return [*remaining, str(caught.value), engine.load(tmp_path).path.name]

    (first, message, newest), second = threads.run(2, rank)
    assert (first, newest) == (second[0], second[2]) == (FIRST, SECOND)
    assert "rank 1 failed and reports the reason" in message
    assert "No space left" in second[1]


def test_unshared_folder_is_rejected(tmp_path: Path) -> None:
    def rank(world: Any) -> None:
        engine = make_engine(ODD, world)
        (tmp_path / str(world.rank) / ".step-000000.unfinished").mkdir(parents=True)
        subject = "rank 0 failed and reports the reason" if world.rank else "rank 0 finds no file of rank 1"
        with refused(InvalidRequest, subject=subject):
            engine.save(tmp_path / str(world.rank))

    threads.run(2, rank)
