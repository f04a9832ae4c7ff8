"""Checkpoints: content, and rejection without any change."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest, RankError, Unsupported
from suite.core.grid import Grid
from suite.core.protocols import Read, WeightPolicy
from suite.engine.checkpoint import storage
from suite.engine.engine import Engine
from suite.engine.optim.loss_scaler import DynamicLossScaler
from suite.engine.optim.lr_schedule import WarmupCosine
from suite.engine.optim.optimizer import SGD, Adam, AdamW
from suite.memory.layout import offloaded
from tests.support.cases import Case, gpt_case, odd_case
from tests.support.refusals import refused
from tests.support.resuming import RankState, batch_of, engine_of, rank_state, trained

TIED = gpt_case("tied", "float32")
ODD = odd_case(torch.float32)
HALF = {"optimizer": AdamW(0.01), "half": "bfloat16"}


def alone() -> threads.LoopbackWorld:
    return threads.LoopbackWorld(threads.Hub(1), 0)


def make_engine(case: Case = ODD, **more: Any) -> Engine:
    return engine_of(case, alone(), Grid(), **{"optimizer": AdamW(0.01), **more})


def taught(folder: Path, batches: int = 1, case: Case = ODD, **more: Any) -> Engine:
    """An engine that trained and saved a checkpoint after every batch."""
    engine = make_engine(case, **more)
    for number in range(batches):
        engine.train_batch(batch_of(case, number))
        engine.save(folder)
    return engine


def files_of(path: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {file.name: load_file(file) for file in sorted(path.glob("*.safetensors"))}


def untouched(engine: Engine, action: Callable[[], Any], pattern: str, kind: type[Exception] = InvalidRequest) -> None:
    """Assert that the action raises InvalidRequest with this pattern and does not change the engine."""
    before, state = rank_state(engine), torch.get_rng_state()
    with pytest.raises(kind, match=pattern):
        action()
    before.compare(rank_state(engine), pattern)
    assert torch.equal(torch.get_rng_state(), state)
    assert engine.state.evaluated == 0


# -- faults of the original ------------------------------------------------------------------------------------------


def test_checkpoint_holds_full_precision_weights(tmp_path: Path) -> None:
    engine = taught(tmp_path, case=TIED, **HALF)
    files = files_of(tmp_path / "step-000001")
    for number, layer in enumerate(engine.state.stage.layers):
        for name, parameter in layer.named_parameters():
            saved = files[f"layer-{number:05d}.safetensors"]
            assert saved[f"weight/{name}"].dtype == torch.float32
            for state, tensor in engine.state.model_states.export(parameter).items():
                assert torch.equal(saved[f"{state}/{name}"], tensor), name
    (first,) = (p for p in engine.state.model_states.parameters if p is engine.state.stage.layers[0].token.weight)
    full = engine.state.model_states.export(first)["weight"]
    assert not torch.equal(full, first.detach().float()), "nothing is lost in rounding: this test sees nothing"


def test_checkpoint_holds_loss_scale_counters_and_position(tmp_path: Path) -> None:
    more = {"half": "float16", "optimizer": AdamW(0.01), "loss_scaler": DynamicLossScaler(2.0**19, patience=3)}
    engine = make_engine(TIED, **more)
    for number in range(4):
        engine.train_batch(batch_of(TIED, number))
    engine.evaluate([batch_of(TIED, 5)])
    path = engine.save(tmp_path)
    assert path == tmp_path / "step-000004"
    again = make_engine(TIED, **more | {"loss_scaler": DynamicLossScaler(2.0**19, patience=3)})
    loaded = again.load(path)
    assert engine.state.update.skipped >= 1
    assert again.state.loss_scaler is not None
    assert again.state.loss_scaler.state() == engine.state.loss_scaler.state() != DynamicLossScaler(2.0**19).state()
    assert (
        again.state.model_states.rule.updates
        == engine.state.model_states.rule.updates
        == 4 - engine.state.update.skipped
    )
    assert (again.state.updates, again.state.microbatches, again.state.evaluated) == (4, 14, engine.state.evaluated)
    assert (loaded.path, loaded.updates, loaded.samples, loaded.notes) == (path, 4, 14 * TIED.microbatch, ())


def test_checkpoint_holds_offloaded_moments(tmp_path: Path) -> None:
    more = {**HALF, "memory": partial(offloaded, bucket=300), "bucket_numel": 300}
    engine = taught(tmp_path, case=TIED, **more)
    assert engine.state.model_states.layout["moment_1"].home == "host"
    again = make_engine(TIED, **HALF)  # the memory layout is not part of the fingerprint
    again.load(tmp_path)
    rank_state(engine).compare(rank_state(again), "from the host")


def test_checkpoint_has_files_of_every_stage_and_replica(tmp_path: Path) -> None:
    grid = Grid(inter=2, data=2)
    threads.run(4, lambda world: trained(TIED, world, grid, range(1), save=tmp_path, optimizer=SGD(0.1)))
    files = files_of(tmp_path / "step-000001")
    assert [*files] == [
        *(f"layer-{number:05d}.safetensors" for number in range(5)),
        *(f"rank-{rank:05d}-replica-{replica:05d}.safetensors" for rank in (0, 1) for replica in (0, 1)),
    ]
    first, last = files["layer-00000.safetensors"], files["layer-00004.safetensors"]
    for state in ("weight", "velocity"):
        assert torch.equal(first[f"{state}/token.weight"], last[f"{state}/weight"]), "both ends of a tie are kept"


def test_two_engines_save_separate_checkpoints(tmp_path: Path) -> None:
    """AxoNN's public code has one global model."""
    taught(tmp_path / "one", case=TIED)
    two = taught(tmp_path / "two", 2)
    before = rank_state(two)
    make_engine(TIED).load(tmp_path / "one")
    before.compare(rank_state(two), "another engine's load")
    again = make_engine()
    again.load(tmp_path / "two")
    before.compare(rank_state(again), "two")


# -- what else is kept -----------------------------------------------------------------------------------------------


def frozen_layers() -> list[nn.Module]:
    torch.manual_seed(2)
    layers = [nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)]
    layers[0].bias.requires_grad_(False)
    return layers


@pytest.mark.parametrize("half", [None, "bfloat16"])
def test_checkpoint_holds_frozen_weights_and_buffers(half: str | None, tmp_path: Path) -> None:
    def engine() -> Engine:
        return Engine(frozen_layers(), loss=F.cross_entropy, optimizer=Adam(0.1), microbatch=3, half=half)

    first = engine()
    with torch.no_grad():
        first.state.stage.layers[0].bias.add_(1.0)  # as if the user had loaded it from another file
    first.train_batch(batch_of(ODD, 0))
    first.save(tmp_path)
    again = engine()
    again.load(tmp_path)
    rank_state(first).compare(rank_state(again), "frozen")
    assert float(again.state.stage.layers[1].num_batches_tracked) == 6
    files = files_of(tmp_path / "step-000001")["layer-00000.safetensors"]
    assert {name for name in files if name.endswith("bias")} == {"weight/bias"}


def test_extra_data_returns_to_same_rank(tmp_path: Path) -> None:
    def rank(world: Any) -> tuple[Any, Any]:
        engine = engine_of(TIED, world, Grid(inter=world.size), optimizer=SGD(0.1))
        if world.size == 2:
            engine.save(tmp_path, extra={"rank": world.rank, "losses": [0.1, float("inf")]})
        return engine.load(tmp_path).extra

    assert threads.run(2, rank) == [{"rank": rank, "losses": [0.1, float("inf")]} for rank in (0, 1)]
    assert threads.run(1, rank)[0]["rank"] == 0


def test_save_keeps_newest_checkpoints(tmp_path: Path) -> None:
    engine = make_engine()
    for number in range(4):
        engine.train_batch(batch_of(ODD, number))
        engine.save(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000003", "step-000004"]
    for keep in (0, -1, 1.5):
        with refused(InvalidRequest, "keep", str(keep), rule="at least 1 checkpoint"):
            engine.save(tmp_path, keep=keep)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000003", "step-000004"]


def test_checkpoint_of_same_update_is_replaced(tmp_path: Path) -> None:
    taught(tmp_path)
    other = make_engine(TIED)
    other.train_batch(batch_of(TIED, 0))
    other.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    make_engine(TIED).load(tmp_path)


# -- what is refused -------------------------------------------------------------------------------------------------


def wider(case: Case = ODD) -> list[Any]:
    return [*case.layers[:-1], lambda: nn.Linear(3, 4, bias=False)]


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"seed": 6}, r"has seed=5, this engine has seed=6; rule: a checkpoint resumes a run .*; legal: seed=5"),
    ({"microbatch": 1}, r"has microbatch=3, this engine has microbatch=1; .*; legal: microbatch=3"),
    ({"optimizer": AdamW(0.02)}, r"has optimizer\.lr=0\.01, this engine has optimizer\.lr=0\.02; .*legal: .*0\.01"),
    (
        {"optimizer": Adam(0.01)},
        r"has optimizer\._target_=suite.engine.optim.optimizer.AdamW, .*suite.engine.optim.optimizer.Adam;",
    ),
    ({"optimizer": AdamW(WarmupCosine(0.01, total=9))}, r"optimizer\.lr=0\.01, this engine has optimizer\.lr=None"),
    ({"half": "bfloat16"}, r"has half=None, this engine has half=bfloat16"),
    ({"clip_norm": 1.0}, r"has clip_norm=None, this engine has clip_norm=1\.0"),
    ({"case": TIED}, r"has layers=7, this engine has layers=5"),
    (
        {"case": Case("", wider(), F.cross_entropy, ODD.sample, 3)},
        r"moment_1/weight \['float32', 3, 3\], this engine has \['float32', 4, 3\]; .*; legal",
    ),
    ({"case": odd_case(torch.float64)}, r"layer 0 .* has .* \['float32', 7\], this engine has \['float64', 7\]"),
    (
        {"case": Case("", [*ODD.layers[:-1], lambda: nn.Linear(3, 3)], F.cross_entropy, ODD.sample, 3)},
        r"layer 6 .* has moment_1/bias None, this engine has \['float32', 3\]",
    ),
    (
        {"case": Case("", [lambda: nn.BatchNorm1d(7, affine=False), *ODD.layers[1:]], F.cross_entropy, ODD.sample, 3)},
        r"layer 0 .* has moment_1/bias \['float32', 7\], this engine has None",
    ),
]


@pytest.mark.parametrize(("more", "pattern"), OTHERS)
def test_checkpoint_of_another_run_is_rejected_without_change(
    more: dict[str, Any], pattern: str, tmp_path: Path
) -> None:
    taught(tmp_path)
    engine = make_engine(**more)
    for path in (tmp_path, tmp_path / "step-000001"):
        untouched(engine, lambda p=path: engine.load(p), pattern)


def test_checkpoint_with_other_tie_or_loss_scale_is_rejected(tmp_path: Path) -> None:
    taught(tmp_path / "tied", case=TIED)
    untied = make_engine(TIED, tied=())
    untouched(untied, lambda: untied.load(tmp_path / "tied"), r"has tied=\[\[0, 'token.weight', 4, 'weight'\]\], ")
    more = {"optimizer": SGD(0.1), "half": "float16"}
    taught(tmp_path / "scaled", loss_scaler=DynamicLossScaler(4.0), **more)
    other = make_engine(loss_scaler=DynamicLossScaler(4.0, patience=7), **more)
    untouched(other, lambda: other.load(tmp_path / "scaled"), r"scaler\.patience=200, .*=7;.*legal: .*=200")


def test_checkpoint_with_trained_weight_is_rejected_for_frozen_one(tmp_path: Path) -> None:
    def engine(bias: bool) -> Engine:
        layers = frozen_layers()
        layers[0].bias.requires_grad_(bias)
        return Engine(layers, loss=F.cross_entropy, optimizer=SGD(0.1), microbatch=3)

    engine(True).save(tmp_path)
    other = engine(False)
    untouched(
        other, lambda: other.load(tmp_path), r"layer 0 .* has velocity/bias \['float32', 5\], this engine has None"
    )


def test_replicas_must_divide_trained_microbatches(tmp_path: Path) -> None:
    taught(tmp_path)  # 6 microbatches

    def rank(world: Any) -> None:
        engine = engine_of(ODD, world, Grid(data=4), optimizer=AdamW(0.01))
        subject = "was saved after 6 microbatches; this engine has 4 replicas"
        with refused(InvalidRequest, subject=subject, legal="1, 2, 3, 6 replicas"):
            engine.load(tmp_path)
        assert engine.state.updates == engine.state.model_states.rule.updates == 0

    threads.run(4, rank)


def test_load_error_of_one_stage_raises_on_every_rank(tmp_path: Path) -> None:
    """Layer 6 is on the second stage, so the first stage alone could load."""
    taught(tmp_path)
    other = Case("", wider(), F.cross_entropy, ODD.sample, 3)

    def rank(world: Any) -> str:
        engine = engine_of(other, world, Grid(inter=2), optimizer=AdamW(0.01))
        before = rank_state(engine)
        with pytest.raises(InvalidRequest) as caught:
            engine.load(tmp_path)
        before.compare(rank_state(engine), str(world.rank))
        return str(caught.value)

    messages = threads.run(2, rank)
    assert "rank 1 failed and reports the reason" in messages[0]
    assert "layer 6" in messages[1]


def test_missing_checkpoint_is_rejected(tmp_path: Path) -> None:
    engine = make_engine()
    for path in (tmp_path, tmp_path / "nowhere"):
        untouched(engine, lambda p=path: engine.load(p), "no checkpoint in .*; rule: .*; legal: ")
    untouched(engine, lambda: engine.load(tmp_path / "step-000009"), r"step-000009 has no manifest\.json")


def test_other_schema_is_rejected(tmp_path: Path) -> None:
    taught(tmp_path)
    path = tmp_path / "step-000001" / "manifest.json"
    body = json.loads(path.read_text())["body"] | {"schema": 7}
    path.write_text(json.dumps({"sha256": storage.digest(json.dumps(body, sort_keys=True).encode()), "body": body}))
    engine = make_engine()
    untouched(engine, lambda: engine.load(tmp_path), "step-000001 has schema 7; rule: this suite reads schema 2")


def test_interrupted_batch_prevents_save_and_load(tmp_path: Path) -> None:
    taught(tmp_path)
    engine = make_engine()
    x, y = batch_of(ODD, 0)
    y[-1] = 77
    with pytest.raises(IndexError):
        engine.train_batch((x, y))
    untouched(
        engine, lambda: engine.save(tmp_path), "interrupted; rule: .* until the pipeline drains; legal: a new engine"
    )
    untouched(
        engine, lambda: engine.load(tmp_path), "interrupted; rule: .* until the pipeline drains; legal: a new engine"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    make_engine().load(tmp_path)


class Stashing(WeightPolicy):
    """A policy that keeps reading the first version."""

    def read(self, op: Any, versions: Any) -> Read:
        return Read(versions.updates)

    def needed(self, versions: Any) -> frozenset[int]:
        return frozenset({0})


def test_older_weight_version_prevents_save(tmp_path: Path) -> None:
    engine = make_engine(weights=Stashing())
    engine.train_batch(batch_of(ODD, 0))
    with refused(
        Unsupported,
        subject="weight versions (0, 1) updates before the newest",
        rule="a checkpoint holds only the newest weights",
    ):
        engine.save(tmp_path)
    assert not [*tmp_path.glob("*")]


# -- what is damaged -------------------------------------------------------------------------------------------------


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "flipped": flipped,
    "shorter": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_falls_back_to_previous_checkpoint(damage: str, tmp_path: Path) -> None:
    engine = make_engine()
    saved: list[RankState] = []
    for number in range(2):
        engine.train_batch(batch_of(ODD, number))
        engine.save(tmp_path)
        saved.append(rank_state(engine))
    newest = tmp_path / "step-000002"
    names = sorted(path.name for path in newest.iterdir())
    assert len(names) == 7 + 1 + 1
    for name in names:
        whole = (newest / name).read_bytes()
        DAMAGES[damage](newest / name)
        again = make_engine()
        untouched(again, lambda e=again: e.load(newest), f"step-000002.*{name}")
        loaded = again.load(tmp_path)
        assert loaded.path.name == "step-000001"
        (note,) = loaded.notes
        assert "step-000002" in note
        assert name in note
        saved[0].compare(rank_state(again), name)
        (newest / name).write_bytes(whole)
    again = make_engine()
    assert again.load(tmp_path).notes == ()
    saved[1].compare(rank_state(again), "mended")


def test_changed_manifest_is_damaged(tmp_path: Path) -> None:
    taught(tmp_path)
    path = tmp_path / "step-000001" / "manifest.json"
    text = path.read_text()
    assert text.count('"steps": 1,') == 1
    path.write_text(text.replace('"steps": 1,', '"steps": 8,'))
    engine = make_engine()
    untouched(engine, lambda: engine.load(path.parent), r"manifest\.json does not have its own SHA-256")


def test_error_lists_all_damaged_checkpoints(tmp_path: Path) -> None:
    taught(tmp_path, 2)
    for step in (1, 2):
        flipped(tmp_path / f"step-00000{step}" / "layer-00001.safetensors")
    engine = make_engine()
    pattern = "no checkpoint in .*; step-000002/layer-00001.safetensors has SHA-256 .*; step-000001/layer-00001"
    untouched(engine, lambda: engine.load(tmp_path), pattern)


def test_damaged_stage_raises_on_every_rank(tmp_path: Path) -> None:
    taught(tmp_path, 2)
    flipped(tmp_path / "step-000002" / "layer-00006.safetensors")

    def rank(world: Any) -> list[str]:
        engine = engine_of(ODD, world, Grid(inter=2), optimizer=AdamW(0.01))
        with refused(InvalidRequest, subject="step-000002", rule="every file has the SHA-256 of the manifest"):
            engine.load(tmp_path / "step-000002")
        return [*engine.load(tmp_path).notes, str(engine.state.updates)]

    first, second = threads.run(2, rank)
    assert first == ["step-000002 has a damaged file, which another rank reports", "1"]
    assert "layer-00006" in second[0]


# -- a folder that one rank cannot write -----------------------------------------------------------------------------


def test_write_error_raises_on_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = storage.write_file

    def full(path: Path, data: bytes) -> dict[str, Any]:
        if broken and path.name == "layer-00006.safetensors":
            raise OSError(28, "No space left on device")
        return put(path, data)

    broken = False
    monkeypatch.setattr(storage, "write_file", full)

    def rank(world: Any) -> list[str]:
        nonlocal broken
        engine = engine_of(ODD, world, Grid(inter=2), optimizer=AdamW(0.01))
        engine.train_batch(batch_of(ODD, 0))
        engine.save(tmp_path)
        engine.train_batch(batch_of(ODD, 1))
        broken = True
        with pytest.raises((OSError, RankError)) as caught:
            engine.save(tmp_path)
        world.all_reduce_scalar(0.0, "sum", lambda: None)
        remaining = sorted(path.name for path in tmp_path.iterdir())
        world.all_reduce_scalar(0.0, "sum", lambda: None)
        broken = False
        engine.save(tmp_path)
        return [*remaining, str(caught.value), engine.load(tmp_path).path.name]

    messages = threads.run(2, rank)
    assert "rank 1 failed and reports the reason" in messages[0][-2]
    assert "No space left" in messages[1][-2]
    for remaining, *_, newest in messages:
        assert (remaining, newest) == ("step-000001", "step-000002")


def test_unshared_folder_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rank(world: Any) -> str:
        engine = engine_of(ODD, world, Grid(inter=2), optimizer=AdamW(0.01))
        (tmp_path / str(world.rank) / ".step-000000.unfinished").mkdir(parents=True)
        with pytest.raises(InvalidRequest) as caught:
            engine.save(tmp_path / str(world.rank))
        return str(caught.value)

    first, second = threads.run(2, rank)
    assert "rank 0 finds no file of rank 1" in first
    assert "rule: all ranks share the folder" in first
    assert "rank 0 failed and reports the reason" in second
