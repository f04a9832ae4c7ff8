"""Wrong uses of an engine, as a user of PyTorch makes them: each ends in one sentence, on one rank and on threads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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
from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from tests.support.drawn import drawn
from tests.support.waiting import patience

ONE, TWO = Grid(), Grid(inter=2)
Batch = tuple[torch.Tensor, torch.Tensor]
Mistake = Callable[[Grid], object]


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Branches(Blocks):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(-x if x.sum() > 0 else x)


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


def has_two_engines(grid: Grid) -> None:
    model = sequence()
    first = engine(grid, model)
    engine(grid, model).train_batch(batch())
    first.train_batch(batch())


def calls_from_its_batches(grid: Grid) -> None:
    ours = engine(TWO)

    def batches() -> Iterator[Batch]:
        for _ in range(2):
            ours.evaluate([batch()])
            yield batch()

    ours.fit(batches())


class Use(NamedTuple):
    """A wrong use, and the key, the kind and words of its refusal."""

    mistake: Mistake
    words: str
    key: str = ""
    kind: type[InvalidRequest] = InvalidRequest


INPUTS, TARGETS = batch()
PAIR, OWNS = "a batch is a pair", "an engine owns .data and .grad of its weights"
LAST_CALL, DRAINS = "are the last call on an engine", "stages stand at different updates until the pipeline drains"
HALF = {name: tensor for name, tensor in sequence().state_dict().items() if name[0] == "0"}
PER_SAMPLE = {"loss": lambda output, target: cross_entropy(output, target, reduction="none")}
A_FLOAT = {"loss": lambda output, target: cross_entropy(output, target).item()}

USES = {
    # -- models
    "control flow on data": Use(on_make(Branches), "control flow depends on no", "model"),
    "more stages than layers": Use(lambda grid: engine(Grid(inter=4)), "at least one layer", "stages"),
    "a misspelt split point": Use(
        on_make(Blocks, split_points=["block.*"]), "did you mean", "split point", UnknownName
    ),
    "a split point twice": Use(
        on_make(Blocks, split_points=["blocks.0", "blocks.1", "blocks.0"]), "['blocks.0', 'blocks.1']", "split_points"
    ),
    "a split point inside another": Use(
        on_make(Blocks, split_points=["blocks.0", "blocks.0.1"]), "holds no other split point", "split_points"
    ),
    "a model on meta": Use(on_make(lambda: sequence().to("meta")), "weights have values"),
    "float64 weights": Use(on_train(batch(), lambda: sequence().double()), "weights in float64 and inputs in float32"),
    "a nested tuple": Use(
        on_train(batch(), lambda: nn.Sequential(nn.LSTM(8, 8), nn.Linear(8, 4))),
        "layer 0, LSTM, returns (Tensor, tuple)",
    ),
    "tensor parallelism": Use(lambda grid: engine(Grid(tensor=2)), "no tensor parallelism", "tensor", Unsupported),
    "shards on threads": Use(lambda grid: engine(TWO, shard=True), "shard=False", "shard", Unsupported),
    "an optimizer's name": Use(lambda grid: engine(grid, optimizer="adamw"), "suite.AdamW(lr=1e-3)", "optimizer"),
    # -- batches
    "a large microbatch": Use(on_train(batch(), microbatch=16), "a batch of 16 samples"),
    "an odd batch": Use(on_train(batch(6)), "a batch of 4 samples"),
    "a dict with another name": Use(on_train(({"y": INPUTS}, TARGETS), Blocks), "input_names=['x']"),
    "names for a list of layers": Use(on_train(({"x": INPUTS}, TARGETS)), "no names for its inputs"),
    "targets of another name": Use(on_train((INPUTS, {"labels": TARGETS})), "keyword argument 'labels'", "loss"),
    "numpy inputs": Use(on_train((INPUTS.numpy(), TARGETS)), "torch.from_numpy(inputs)"),
    "lists of numbers": Use(on_train((INPUTS.tolist(), TARGETS.tolist())), "a list of 8 entries"),
    "inputs alone": Use(on_train(INPUTS), PAIR),
    "a dict in place of a pair": Use(on_train({"x": INPUTS, "y": TARGETS}), PAIR),
    "three tensors": Use(on_train((INPUTS, TARGETS, TARGETS)), PAIR),
    "fewer targets than inputs": Use(on_train((INPUTS, batch(4)[1])), "4 and 8 samples"),
    "inputs on meta": Use(on_train((INPUTS.to("meta"), TARGETS)), "tensors with values"),
    "two batches in train_batch": Use(on_train([batch()] * 2), "layer 0, Linear, gets 2 tensors"),
    "one pair in train": Use(on_call(lambda ours: list(ours.train(batch()))), "train and evaluate take a list"),
    "a data set in fit": Use(on_call(lambda ours: ours.fit(TensorDataset(*batch()))), "iterable of batches", "batches"),
    "a pair in predict": Use(on_call(lambda ours: ours.predict(batch())), "predict(inputs)"),
    "a pair for a module": Use(lambda grid: engine(grid, Blocks()).predict(batch()), "2 tensors"),
    # -- losses
    "a loss per sample": Use(on_train(batch(), **PER_SAMPLE), "a tensor of shape (4,)", "loss"),
    "a loss that is a float": Use(on_train(batch(), **A_FLOAT), "without .item()", "loss"),
    "a loss of one argument": Use(on_train(batch(), loss=lambda output: output.mean()), "2 were given", "loss"),
    # -- files and state dicts
    "a missing folder": Use(on_call(lambda ours: ours.load("/nowhere")), "no checkpoint in /nowhere"),
    "a file for a folder": Use(with_file("a.pt", b"", Engine.save), "a file", "folder"),
    "missing weights": Use(on_call(lambda ours: ours.load_model("/nowhere")), "no file /nowhere"),
    "a file of text": Use(with_file("a.pt", b"hello"), "torch.save(model.state_dict(), path)"),
    "a damaged file": Use(with_file("a.safetensors", b"hello"), "no state dict"),
    "a file of a whole module": Use(with_file("a.pt", nn.Linear(8, 4)), "no state dict"),
    "half of the weights": Use(on_call(lambda ours: ours.load_state_dict(HALF)), "without '2.weight'"),
    "a module for weights": Use(on_call(lambda ours: ours.load_state_dict(sequence())), "a Sequential"),  # type: ignore[arg-type]
    "numpy weights": Use(on_call(lambda ours: ours.load_state_dict({"0.weight": INPUTS.numpy()})), "a ndarray"),  # type: ignore[dict-item]
    # -- order of calls
    "save in a stream": Use(within_stream(lambda ours: ours.save("nowhere")), DRAINS),
    "state_dict in a stream": Use(within_stream(Engine.state_dict), DRAINS),
    "predict in a stream": Use(within_stream(lambda ours: ours.predict(INPUTS)), DRAINS),
    "evaluate in a stream": Use(within_stream(lambda ours: ours.evaluate([batch()])), DRAINS),
    "a stream in a stream": Use(within_stream(lambda ours: ours.fit([batch()] * 4)), "are lost when a stream"),
    "a stream that ends early": Use(
        lambda grid: streaming(grid).fit([batch()] * 8, on_batch=lambda loss, seconds: True),
        "fewer batches in one call",
        "on_batch",
        Unsupported,
    ),
    "a second pruning": Use(prunes_twice, "pruned at most once"),
    "train_batch after close": Use(after_close(lambda ours: ours.train_batch(batch())), LAST_CALL),
    "train after close": Use(after_close(lambda ours: list(ours.train([batch()]))), LAST_CALL),
    "evaluate after close": Use(after_close(lambda ours: ours.evaluate([batch()])), LAST_CALL),
    "predict after close": Use(after_close(lambda ours: ours.predict(INPUTS)), LAST_CALL),
    "gradients after close": Use(after_close(lambda ours: ours.gradients(batch())), LAST_CALL),
    "state_dict after close": Use(after_close(Engine.state_dict), LAST_CALL),
    "save after close": Use(after_close(lambda ours: ours.save("nowhere")), LAST_CALL),
    "close between two losses": Use(closes_while_it_trains, LAST_CALL),
    "zero_grad between batches": Use(between_batches(nn.Module.zero_grad), OWNS),
    "float64 between batches": Use(between_batches(nn.Module.double), OWNS),
    "meta between batches": Use(between_batches(lambda model: model.to("meta")), "weights on meta"),
    "two engines of the modules": Use(has_two_engines, "the newest engine of these modules"),
    "an evaluation from batches": Use(calls_from_its_batches, "run one call at a time"),
    "memory of threads": Use(lambda grid: engine(TWO).memory(batch()), "counted per process", kind=Unsupported),
    "a hook's name": Use(on_call(lambda ours: ours.fit([batch()], on_batch="print")), "not a function", "on_batch"),  # type: ignore[arg-type]
    "a hook of the loss alone": Use(
        on_call(lambda ours: ours.fit([batch()], on_batch=lambda loss: None)),  # type: ignore[arg-type, misc]
        "too many positional arguments",
        "on_batch",
    ),
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
    thread.join(patience(10))
    assert errors, "no end" if thread.is_alive() else "no error"
    return errors[0]


def sentence(error: BaseException) -> str:
    """The message of an error without addresses and temporary folders."""
    return re.sub(r"0x[0-9a-f]+|/tmp\S+", "", str(error))


def check(name: str, grid: Grid) -> BaseException:
    wrong, error = USES[name], error_of(USES[name].mistake, grid)
    assert isinstance(error, wrong.kind), (name, error)
    assert wrong.words in str(error), (name, wrong.words)
    assert (error.key, "\n" in str(error)) == (wrong.key, False), (name, error)
    return error


def test_wrong_uses_end_in_one_sentence() -> None:
    for name in USES:
        check(name, ONE)


@pytest.mark.parametrize("name", drawn(USES, n=16))
def test_wrong_use_of_threads_ends_in_the_same_sentence(name: str) -> None:
    assert sentence(check(name, TWO)) == sentence(check(name, ONE))


def fails(*tensors: torch.Tensor) -> torch.Tensor:
    raise KeyError("no such class")


SCORES: Mistake = lambda grid: engine(grid, scores=fails, score_names=["a"]).score([batch()])  # noqa: E731
OWN_ERRORS: list[tuple[Mistake, type[Exception], str]] = [
    (on_train((INPUTS, TARGETS.int())), RuntimeError, "loss=cross_entropy"),
    (on_train((INPUTS, TARGETS + 9)), IndexError, "loss=cross_entropy"),
    (on_train(batch(), loss=fails), KeyError, "loss=fails"),
    (SCORES, KeyError, "scores=fails"),
    (on_train((INPUTS[:, 1:], TARGETS)), RuntimeError, "layer 0, Linear"),
    (on_train((INPUTS.long(), TARGETS)), RuntimeError, "layer 0, Linear"),
    (on_train((INPUTS[:, 1:], TARGETS), Blocks), RuntimeError, "layer 0, which begins at the inputs"),
]


@pytest.mark.parametrize("grid", [ONE, TWO], ids=str)
def test_error_of_user_code_names_its_place(grid: Grid) -> None:
    for mistake, kind, note in OWN_ERRORS:
        error = error_of(mistake, grid)
        assert type(error) is kind
        assert len(error.__notes__) == 1
        assert note in error.__notes__[0]
