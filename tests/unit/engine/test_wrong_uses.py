"""Wrong uses of an engine, as a user of PyTorch makes them: each ends in one sentence, on one rank and on threads."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from threading import Thread
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from suite import SGD, AdamW, Engine, Grid, OneFOneB
from suite.core.errors import InvalidRequest, Unsupported
from tests.support.drawn import drawn
from tests.support.refusals import setting
from tests.support.waiting import patience

DEADLINE = patience(20)  # measured once, as every measurement takes 10 ms
ONE, TWO = Grid(), Grid(inter=2)
Batch = tuple[torch.Tensor, torch.Tensor]
Mistake = Callable[[Grid], object]


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[1](self.blocks[0](x))


def sequence() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def batch(samples: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(samples)
    return torch.randn(samples, 8, generator=generator), torch.randint(0, 4, (samples,), generator=generator)


def engine(grid: Any, model: Any = None, **more: Any) -> Engine:
    def adamw(weights: Any) -> torch.optim.AdamW:
        return torch.optim.AdamW(weights, lr=1e-3)

    arguments: dict[str, Any] = {"loss": cross_entropy, "optimizer": adamw, "microbatch": 4, "grid": grid}
    return Engine(sequence() if model is None else model, **(arguments | more))


def streaming(grid: Grid) -> Engine:
    return engine(grid, optimizer=SGD(0.1), schedule=OneFOneB(), update_interval=1)


def on_train(wrong_batch: Any, model: Callable[[], nn.Module] = sequence, **more: Any) -> Mistake:
    return lambda grid: engine(grid, model(), **more).train_batch(wrong_batch)


def on_make(model: Callable[[], nn.Module], **wrong: Any) -> Mistake:
    return lambda grid: engine(grid, model(), **wrong)


def on_call(call: Callable[[Engine], object]) -> Mistake:
    return lambda grid: call(engine(grid))


def within_stream(call: Callable[[Engine], object]) -> Mistake:
    def mistake(grid: Grid) -> None:
        ours = streaming(grid)
        for _ in ours.train([batch()] * 8):
            call(ours)

    return mistake


def after_close(call: Callable[[Engine], object]) -> Mistake:
    def mistake(grid: Grid) -> object:
        with engine(grid) as ours:
            ours.train_batch(batch())
        ours.close()  # a second close does nothing
        assert ours.closed
        return call(ours)

    return mistake


def between_batches(change: Callable[[nn.Module], object]) -> Mistake:
    def mistake(grid: Grid) -> None:
        model = sequence()
        for _ in engine(grid, model).train([batch()] * 3):
            change(model)

    return mistake


def with_file(name: str, content: Any, call: Callable[[Engine, Path], object] = Engine.load_model) -> Mistake:
    """Call an engine on a file that holds something else."""

    def mistake(grid: Grid) -> object:
        path = Path(mkdtemp()) / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            torch.save(content, path)
        return call(engine(grid), path)

    return mistake


def prunes_twice(grid: Grid) -> None:
    ours = engine(grid, optimizer=AdamW(0.1))
    for _ in range(2):
        ours.prune({(0, "weight"): torch.arange(8, dtype=torch.int32)})


def closes_while_it_trains(grid: Grid) -> None:
    ours = engine(grid)
    for _ in ours.train([batch()] * 3):
        ours.close()


class Use(NamedTuple):
    """A wrong use, and the key, the kind and words of its refusal."""

    mistake: Mistake
    words: str
    key: str = ""
    kind: type[InvalidRequest] = InvalidRequest


INPUTS, TARGETS = batch()
OWNS = "an engine owns .data and .grad of its weights"
LAST_CALL, DRAINS = "are the last call on an engine", "stages stand at different updates until the pipeline drains"
CALLS: dict[str, Callable[[Engine], object]] = {
    "train_batch": lambda ours: ours.train_batch(batch()),
    "train": lambda ours: list(ours.train([batch()])),
    "evaluate": lambda ours: ours.evaluate([batch()]),
    "predict": lambda ours: ours.predict(INPUTS),
    "gradients": lambda ours: ours.gradients(batch()),
    "save": lambda ours: ours.save("nowhere"),
    "state_dict": Engine.state_dict,
}
IN_STREAM = ("save", "state_dict", "predict", "evaluate")

USES = {
    # -- models
    "more stages than layers": Use(lambda grid: engine(Grid(inter=4)), "at least one layer", "stages"),
    "a model on meta": Use(on_make(lambda: sequence().to("meta")), "weights have values"),
    "a nested tuple": Use(
        on_train(batch(), lambda: nn.Sequential(nn.LSTM(8, 8), nn.Linear(8, 4))),
        "layer 0, LSTM, returns (Tensor, tuple)",
    ),
    "shards on threads": Use(lambda grid: engine(TWO, shard=True), "shard=False", "shard", Unsupported),
    # -- batches
    "an odd batch": Use(on_train(batch(6)), "a batch of 4 samples"),
    "inputs on meta": Use(on_train((INPUTS.to("meta"), TARGETS)), "a tensor with values"),
    "one pair in train": Use(on_call(lambda ours: list(ours.train(batch()))), "train and evaluate take a list"),
    "a data set in fit": Use(on_call(lambda ours: ours.fit(TensorDataset(*batch()))), "samples in its first dimension"),
    # -- files and state dicts
    "a file for a folder": Use(with_file("a.pt", b"", Engine.save), "a file", "folder"),
    "a file of text": Use(with_file("a.pt", b"hello"), "torch.save(model.state_dict(), path)"),
    "a damaged file": Use(with_file("a.safetensors", b"hello"), "no state dict"),
    "numpy weights": Use(on_call(lambda ours: ours.load_state_dict({"0.weight": INPUTS.numpy()})), "a ndarray"),  # type: ignore[dict-item]
    # -- order of calls
    **{f"{name} in a stream": Use(within_stream(CALLS[name]), DRAINS) for name in IN_STREAM},
    **{f"{name} after close": Use(after_close(call), LAST_CALL) for name, call in CALLS.items()},
    "a stream in a stream": Use(within_stream(lambda ours: ours.fit([batch()] * 4)), DRAINS),
    "a stream that ends early": Use(
        lambda grid: streaming(grid).fit([batch()] * 8, on_batch=lambda loss, seconds: True),
        "fewer batches in one call",
        "on_batch",
        Unsupported,
    ),
    "a second pruning": Use(prunes_twice, "pruned at most once"),
    "close between two losses": Use(closes_while_it_trains, LAST_CALL),
    "inputs of another module": Use(
        on_call(lambda ours: ours.train_batch((batch()[0].requires_grad_(), batch()[1]))), "no gradient leaves"
    ),
    "zero_grad between batches": Use(between_batches(nn.Module.zero_grad), OWNS),
    "float64 between batches": Use(between_batches(nn.Module.double), OWNS),
}


def error_of(mistake: Mistake, grid: Grid) -> BaseException:
    """The error of a wrong use. Fails without an error, and where the use does not end in time."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            mistake(grid)
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert errors, "no end" if thread.is_alive() else "no error"
    return errors[0]


def sentence(error: BaseException) -> str:
    """The message of an error without addresses and temporary folders."""
    return re.sub(r"0x[0-9a-f]+|/tmp\S+", "", str(error))


def check(name: str, grid: Grid) -> BaseException:
    wrong, error = USES[name], error_of(USES[name].mistake, grid)
    assert isinstance(error, wrong.kind), (name, error)
    assert wrong.words in str(error), (name, wrong.words)
    assert (setting(error)[0], "\n" in str(error)) == (wrong.key, False), (name, error)
    return error


def test_wrong_uses_end_in_one_sentence() -> None:
    for name in USES:
        check(name, ONE)


@pytest.mark.parametrize("name", drawn(USES, n=10))
def test_wrong_use_of_threads_ends_in_the_same_sentence(name: str) -> None:
    assert sentence(check(name, TWO)) == sentence(check(name, ONE))


def fails(*tensors: torch.Tensor) -> torch.Tensor:
    raise KeyError("no such class")


SCORES: Mistake = lambda grid: engine(grid, scores=fails, score_names=["a"]).score([batch()])  # noqa: E731
OWN_ERRORS: list[tuple[Mistake, type[Exception], str]] = [
    (on_train((INPUTS, TARGETS.int())), RuntimeError, "loss=cross_entropy"),
    (on_train(batch(), loss=fails), KeyError, "loss=fails"),
    (SCORES, KeyError, "scores=fails"),
    (on_train((INPUTS[:, 1:], TARGETS)), RuntimeError, "layer 0, Linear"),
    (on_train((INPUTS[:, 1:], TARGETS), Blocks), RuntimeError, "layer 0, which begins at blocks.0"),
    (on_train([batch()] * 2), TypeError, "layer 0, Linear, of inputs (4, 8) float32, (4,) int64"),
    (on_train((INPUTS, {"labels": TARGETS})), TypeError, "targets in a dict are keyword arguments"),
    (on_train(batch(), loss=lambda output: output.mean()), TypeError, "loss(*outputs, *targets)"),
    (between_batches(lambda model: model.to("meta")), RuntimeError, "layer 0, Linear"),
]


@pytest.mark.parametrize("grid", [ONE, TWO], ids=str)
def test_error_of_user_code_names_its_place(grid: Grid) -> None:
    for mistake, kind, note in OWN_ERRORS:
        error = error_of(mistake, grid)
        assert type(error) is kind
        assert len(error.__notes__) == 1
        assert note in error.__notes__[0]
