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

from suite import SGD, Adam, AdamW, Engine, Grid
from suite.comm.p2p import threads
from suite.core.errors import InvalidRequest, RankError
from suite.engine.checkpoint import files
from suite.engine.checkpoint.save import STATE
from tests.support.cases import Case, gpt_case, odd_case
from tests.support.refusals import refused
from tests.support.resuming import batch_of, engine_of, rank_state

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
    training = load_file(tmp_path / FIRST / "training-00000-00000.safetensors")
    assert "0/buffer/bias" not in training
    assert "0/velocity/bias" not in training
    trained = frozen(bias=True, half=half)
    untouched(trained, lambda: trained.load(tmp_path), "layer 0.bias=['torch.", "'trained'")


def test_extra_data_returns_to_same_rank(tmp_path: Path) -> None:
    def rank(world: Any) -> Any:
        engine = make_engine(ODD, world)
        if world.size == 2:
            engine.save(tmp_path, extra={"rank": world.rank, "losses": [0.1, float("inf")]})
        return engine.load(tmp_path).extra

    assert threads.run(2, rank) == [{"rank": rank, "losses": [0.1, float("inf")]} for rank in (0, 1)]
    assert threads.run(1, rank)[0]["rank"] == 0


# -- what is refused -------------------------------------------------------------------------------------------------


def odd_with(number: int, layer: Callable[[], nn.Module]) -> dict[str, Case]:
    return {"case": Case("", [*ODD.layers[:number], layer, *ODD.layers[number + 1 :]], F.cross_entropy, ODD.sample, 3)}


RULES = "suite.engine.optim.optimizer"
WIDER = odd_with(6, lambda: nn.Linear(3, 4, bias=False))
CASES: list[tuple[dict[str, Any], str, str]] = [
    (WIDER, "layer 6.weight=['trained', 'torch.float32', 3, 3]", "layer 6.weight=['trained', 'torch.float32', 4, 3]"),
    (odd_with(6, lambda: nn.Linear(3, 3)), "layer 6.bias=None", "layer 6.bias=['trained', 'torch.float32', 3]"),
    ({"case": odd_case(torch.float64)}, "layer 0.weight=['trained', 'torch.float32', 7]", "'torch.float64', 7]"),
    ({"case": TIED}, "layers=7", "layers=3"),
    ({"seed": 6}, "seed=5", "seed=6"),
    ({"optimizer": AdamW(0.02)}, "optimizer.lr=0.01", "optimizer.lr=0.02"),
    ({"optimizer": Adam(0.01)}, f"optimizer._target_={RULES}.AdamW", f"optimizer._target_={RULES}.Adam"),
    ({"half": "bfloat16"}, "half=None", "half=bfloat16"),
]


def test_checkpoint_of_another_run_is_rejected_without_change(tmp_path: Path) -> None:
    taught(tmp_path)
    for more, saved, current in CASES:
        engine = make_engine(**more)
        for path in (tmp_path, tmp_path / FIRST):
            assert saved in untouched(engine, lambda e=engine, p=path: e.load(p), saved, "engine has ", current)


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
        world.all_reduce_numbers([0.0], "sum", lambda: None)  # both ranks seed the process's generator for their layers
        words = "layer 6" if world.rank else "rank 1 failed and reports the reason"
        untouched(engine, lambda: engine.load(tmp_path), words)

    threads.run(2, rank)


def test_missing_checkpoint_and_other_formats_are_rejected(tmp_path: Path) -> None:
    engine = make_engine()
    for path in (tmp_path, tmp_path / "nowhere"):
        untouched(engine, lambda p=path: engine.load(p), "no checkpoint in ")
    untouched(engine, lambda: engine.load(tmp_path / "step-000009"), "step-000009", f"{STATE} is missing")
    taught(tmp_path)
    path = tmp_path / FIRST / STATE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 7}))
    untouched(engine, lambda: engine.load(tmp_path), FIRST, "has format 7")
    path.rename(path.with_name("manifest.json"))  # of an earlier version
    untouched(engine, lambda: engine.load(tmp_path), FIRST, f"{STATE} is missing")


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


# -- what is damaged -------------------------------------------------------------------------------------------------


DAMAGES: list[Callable[[Path], Any]] = [
    lambda path: path.write_bytes(path.read_bytes()[:-1]),
    lambda path: path.write_bytes(b"\xff" + path.read_bytes()[1:]),
    lambda path: path.write_bytes(b""),
    Path.unlink,
]


def test_damaged_checkpoint_is_refused_and_the_one_before_loads(tmp_path: Path) -> None:
    engine = make_engine()
    saved = []
    for number in range(2):
        engine.train_batch(batch_of(ODD, number))
        engine.save(tmp_path)
        saved.append(rank_state(engine))
    newest = tmp_path / SECOND
    for name in (STATE, "model-00001-of-00001.safetensors", "training-00000-00000.safetensors"):
        whole = (newest / name).read_bytes()
        for damage in DAMAGES:
            damage(newest / name)
            again = make_engine()
            for path in (newest, tmp_path):
                legal = untouched(again, lambda e=again, p=path: e.load(p), SECOND, "" if name == STATE else name)
                assert legal == str(tmp_path / FIRST)
            again.load(Path(legal))
            saved[0].compare(rank_state(again), name)
            (newest / name).write_bytes(whole)
    again = make_engine()
    again.load(tmp_path)
    saved[1].compare(rank_state(again), "mended")


# -- a folder that one rank cannot write -----------------------------------------------------------------------------


def test_write_error_raises_on_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, failed = files.write, list[Path]()

    def full_once(path: Path, *contents: Any) -> None:
        if path.name == "training-00001-00000.safetensors" and path.parent.name.startswith(f".{SECOND}") and not failed:
            failed.append(path)
            raise OSError(28, "No space left on device")
        write(path, *contents)

    monkeypatch.setattr(files, "write", full_once)

    def rank(world: Any) -> list[str]:
        engine = make_engine(ODD, world)
        engine.train_batch(batch_of(ODD, 0))
        engine.save(tmp_path)
        engine.train_batch(batch_of(ODD, 1))
        with pytest.raises((OSError, RankError)) as caught:
            engine.save(tmp_path)
        world.all_reduce_numbers([0.0], "sum", lambda: None)  # rank 0 has removed the unfinished files
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
        subject = (
            "rank 0 failed and reports the reason" if world.rank else "rank 0 finds no training-00001-00000.safetensors"
        )
        with refused(InvalidRequest, subject=subject):
            engine.save(tmp_path / str(world.rank))

    threads.run(2, rank)
