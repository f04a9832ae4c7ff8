"""Wrong uses of an engine, as a user of PyTorch makes them: each ends in one sentence, on one rank and on threads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from threading import Thread
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

from suite import SGD, AdamW, Engine, Grid, OneFOneB
from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from tests.support.refusals import fault, refused

TIME_LIMIT = 30.0  # seconds
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


class NoBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def sequence() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def batch(samples: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(samples)
    return torch.randn(samples, 8, generator=generator), torch.randint(0, 4, (samples,), generator=generator)


def adamw(weights: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(weights, lr=1e-3)


def engine(grid: Any, model: Any = None, **more: Any) -> Engine:
    arguments: dict[str, Any] = {"loss": cross_entropy, "optimizer": adamw, "microbatch": 4, "grid": grid}
    return Engine(sequence() if model is None else model, **(arguments | more))


def streaming(grid: Grid) -> Engine:
    return engine(grid, optimizer=SGD(0.1), schedule=OneFOneB(), update_interval=1)


def on_train(wrong_batch: Any, model: Callable[[], nn.Module] = sequence, **more: Any) -> Mistake:
    """Train on a wrong batch."""
    return lambda grid: engine(grid, model(), **more).train_batch(wrong_batch)


def on_make(**wrong: Any) -> Mistake:
    """Make an engine with wrong arguments."""
    return lambda grid: engine(grid, **wrong)


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
        return call(ours)

    return mistake


def between_batches(change: Callable[[nn.Module], object]) -> Mistake:
    def mistake(grid: Grid) -> None:
        model = sequence()
        ours = engine(grid, model)
        for _ in ours.train([batch()] * 3):
            change(model)

    return mistake


def with_file(name: str, content: Any, call: Callable[[Engine, Path], object]) -> Mistake:
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


def state_dict_of(*names: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in sequence().state_dict().items() if name in names}


class Use(NamedTuple):
    """A wrong use.

    Attributes:
        kind, expected: The refusal; see refusals.refused.
    """

    name: str
    mistake: Mistake
    kind: type[InvalidRequest]
    expected: dict[str, Any]


def use(name: str, mistake: Mistake, kind: type[InvalidRequest] = InvalidRequest, /, **expected: Any) -> Use:
    return Use(name, mistake, kind, fault(**expected))


INPUTS, TARGETS = batch()
TORCH_ADAM = adamw([nn.Parameter(torch.zeros(1))])
A_PAIR, SAMPLES = "a batch is a pair", "samples in their first dimension"
A_SCHEDULER = "makes a scheduler"
OWNS = "an engine owns .data and .grad of its weights"
LAST_CALL = "are the last call on an engine"
DRAINS = "stages stand at different updates until the pipeline drains"

USES = [
    # -- optimizers
    use("an optimizer instance", on_make(optimizer=TORCH_ADAM), key="optimizer", rule="of its own weights"),
    use(
        "a factory without weights",
        on_make(optimizer=lambda: TORCH_ADAM),
        key="optimizer",
        subject="takes 0 positional arguments",
        rule="a function of the trained weights",
    ),
    use(
        "a misspelt betas=",
        on_make(optimizer=lambda weights: torch.optim.AdamW(weights, beta=(0.9, 0.99))),  # type: ignore[call-arg]
        key="optimizer",
        subject="unexpected keyword argument 'beta'",
    ),
    use(
        "a misspelt momentum=",
        on_make(optimizer=partial(torch.optim.SGD, lr=0.1, momentun=0.9)),
        key="optimizer",
        subject="unexpected keyword argument 'momentun'",
    ),
    use(
        "a negative learning rate",
        on_make(optimizer=lambda weights: torch.optim.SGD(weights, lr=-0.1)),
        key="optimizer",
        subject="Invalid learning rate",
    ),
    use("an optimizer's name", on_make(optimizer="adamw"), key="optimizer", legal="suite.AdamW(lr=1e-3)"),
    use("an optimizer of the suite as a class", on_make(optimizer=AdamW), key="optimizer", subject="a class"),
    use(
        "a scheduler instance",
        on_make(lr_scheduler=lr_scheduler.StepLR(TORCH_ADAM, 1)),
        key="lr_scheduler",
        rule=A_SCHEDULER,
    ),
    use(
        "ReduceLROnPlateau",
        on_make(lr_scheduler=lr_scheduler.ReduceLROnPlateau),
        key="lr_scheduler",
        rule="reads no loss",
    ),
    use(
        "a scheduler without its arguments",
        on_make(lr_scheduler=lr_scheduler.StepLR),
        key="lr_scheduler",
        subject="missing 1 required positional argument: 'step_size'",
        rule=A_SCHEDULER,
    ),
    # -- models
    use("a bare function", on_make(model=torch.relu), key="model", rule="a module, or a list"),
    use("a class of modules", on_make(model=Blocks), key="model", rule="a module, or a list"),
    use("control flow on data", lambda grid: engine(grid, Branches()), key="model", rule="control flow depends on no"),
    use("no blocks", lambda grid: engine(grid, NoBlocks()), key="model", subject="without blocks"),
    use("more stages than layers", lambda grid: engine(Grid(inter=4)), key="stages", rule="at least one layer"),
    use(
        "a misspelt split point",
        lambda grid: engine(grid, Blocks(), split_points=["block.*"]),
        UnknownName,
        key="split point",
        legal="did you mean",
    ),
    use(
        "a split point twice",
        lambda grid: engine(grid, Blocks(), split_points=["blocks.0", "blocks.1", "blocks.0"]),
        key="split_points",
        legal="split_points=['blocks.0', 'blocks.1']",
    ),
    use(
        "a split point inside another",
        lambda grid: engine(grid, Blocks(), split_points=["blocks.0", "blocks.0.1"]),
        key="split_points",
        rule="a split point holds no other split point",
    ),
    use(
        "a module on the device meta",
        lambda grid: engine(grid, sequence().to("meta")),
        subject='on the device "meta"',
        rule="weights have values",
    ),
    use("float64 weights", on_train(batch(), lambda: sequence().double()), subject="weights in float64 and inputs in"),
    use(
        "a layer that returns a nested tuple",
        on_train(batch(), lambda: nn.Sequential(nn.LSTM(8, 8), nn.Linear(8, 4))),
        subject="layer 0, LSTM, returns (Tensor, tuple)",
        rule="a tuple of tensors",
    ),
    use("a tie of a name that does not exist", on_make(tied=[(0, "wait", 2, "weight")]), key="tied", subject="'wait'"),
    use("a tie of a layer that does not exist", on_make(tied=[(0, "weight", 9, "weight")]), key="tied", rule="0 to 2"),
    use("a tie of two names", on_make(tied=[("0.weight", "2.weight")]), key="tied", rule="a list of (layer, name"),
    # -- settings
    use("a schedule's name", on_make(schedule="gpipe"), key="schedule", legal="OneFOneB()"),
    use("a weight policy's name", on_make(weights="pipedream"), key="weights", legal='Predict(s="paper")'),
    use("a grid that is a tuple", lambda grid: engine((2, 1)), key="grid", legal="Grid(inter=2, data=1)"),
    use("a grid that is a number", lambda grid: engine(2), key="grid", legal="Grid(inter=2, data=1)"),
    use(
        "tensor parallelism",
        lambda grid: engine(Grid(tensor=2)),
        Unsupported,
        key="tensor",
        rule="no tensor parallelism",
    ),
    use("8 bits", on_make(half="fp8"), key="half", legal='half="bfloat16"'),
    use("64 bits", on_make(half=torch.float64), key="half", legal='half="bfloat16"'),
    use("a negative norm", on_make(clip_norm=-1), key="clip_norm", rule="above 0"),
    use("no microbatch", on_make(microbatch=0), key="microbatch", rule="at least 1"),
    use("a broken microbatch", on_make(microbatch=2.5), key="microbatch", rule="a whole number"),
    use("shards on threads", lambda grid: engine(TWO, shard=True), Unsupported, key="shard", legal="shard=False"),
    use("scores without names", on_make(scores=cross_entropy), key="score_names", rule="one name for each number"),
    # -- batches
    use("a microbatch larger than a batch", on_train(batch(), microbatch=16), subject="8 samples", legal="16 samples"),
    use("a batch that microbatches do not divide", on_train(batch(6)), subject="6 samples", legal="4 samples"),
    use("a dict with another name", on_train(({"y": INPUTS}, TARGETS), Blocks), rule="input_names=['x']"),
    use("names for a list of layers", on_train(({"x": INPUTS}, TARGETS)), rule="no names for its inputs"),
    use(
        "targets with a name that the loss does not have",
        on_train((INPUTS, {"labels": TARGETS})),
        key="loss",
        subject="'labels'",
        rule="keyword arguments",
    ),
    use("numpy inputs", on_train((INPUTS.numpy(), TARGETS)), legal="torch.from_numpy(inputs)"),
    use("lists of numbers", on_train((INPUTS.tolist(), TARGETS.tolist())), subject="a list of 8 entries"),
    use("inputs alone", on_train(INPUTS), subject="a tensor of shape (8, 8)", rule=A_PAIR),
    use("a dict in place of a pair", on_train({"x": INPUTS, "y": TARGETS}), subject="a dict", rule=A_PAIR),
    use("three tensors", on_train((INPUTS, TARGETS, TARGETS)), subject="a tuple of 3 entries", rule=A_PAIR),
    use("fewer targets than inputs", on_train((INPUTS, batch(4)[1])), subject="4 and 8 samples"),
    use("inputs on the device meta", on_train((INPUTS.to("meta"), TARGETS)), rule="tensors with values"),
    use("three batches in train_batch", on_train([batch()] * 3), subject="a list of 3 entries", rule=A_PAIR),
    use(
        "two batches in train_batch",
        on_train([batch()] * 2),
        subject="layer 0, Linear, gets 2 tensors",
        legal="train_batch((inputs, targets))",
    ),
    use("one pair in train", lambda grid: list(engine(grid).train(batch())), rule="train and evaluate take a list"),
    use(
        "a data set in fit",
        lambda grid: engine(grid).fit(TensorDataset(*batch())),
        key="batches",
        rule="another iterable of batches",
    ),
    use("a pair in predict", lambda grid: engine(grid).predict(batch()), legal="predict(inputs)"),
    use("a pair in predict of a module", lambda grid: engine(grid, Blocks()).predict(batch()), subject="2 tensors"),
    # -- losses
    use("a loss that is a name", on_make(loss="cross_entropy"), key="loss", rule="a function of outputs and targets"),
    use("a loss that is a class", on_make(loss=nn.CrossEntropyLoss), key="loss", legal="loss=CrossEntropyLoss()"),
    use(
        "a loss per sample",
        on_train(batch(), loss=lambda output, target: cross_entropy(output, target, reduction="none")),
        key="loss",
        subject="a tensor of shape (4,)",
    ),
    use(
        "a loss that is a float",
        on_train(batch(), loss=lambda output, target: cross_entropy(output, target).item()),
        key="loss",
        legal="without .item()",
    ),
    use(
        "a loss that is a sum",
        on_train(batch(), loss=lambda output, target: cross_entropy(output, target, reduction="sum")),
        key="loss",
        subject="doubles",
    ),
    use(
        "a loss without targets",
        on_train(batch(), loss=lambda output: output.mean()),
        key="loss",
        subject="takes 1 positional argument but 2 were given",
    ),
    # -- files and state dicts
    use("a missing folder", lambda grid: engine(grid).load("/nowhere"), subject="no checkpoint in /nowhere"),
    use(
        "a checkpoint in place of a folder",
        with_file("weights.pt", b"", lambda ours, path: ours.save(path)),
        key="folder",
        subject="a file",
    ),
    use("missing weights", lambda grid: engine(grid).load_model("/nowhere"), subject="no file /nowhere"),
    use(
        "a file of text",
        with_file("weights.pt", b"hello", lambda ours, path: ours.load_model(path)),
        subject="no state dict",
        legal="torch.save(model.state_dict(), path)",
    ),
    use(
        "a damaged file",
        with_file("model.safetensors", b"hello", lambda ours, path: ours.load_model(path)),
        subject="no state dict",
    ),
    use(
        "a file of a whole module",
        with_file("weights.pt", nn.Linear(8, 4), lambda ours, path: ours.load_model(path)),
        subject="no state dict",
    ),
    use(
        "weights of another model",
        lambda grid: engine(grid).load_state_dict(Blocks().state_dict()),
        subject="a state dict without '0.weight'",
    ),
    use(
        "half of the weights",
        lambda grid: engine(grid).load_state_dict(state_dict_of("0.weight", "0.bias")),
        subject="a state dict without '2.weight'",
    ),
    use("a module in place of weights", lambda grid: engine(grid).load_state_dict(sequence()), subject="a Sequential"),  # type: ignore[arg-type]
    use(
        "numpy weights",
        lambda grid: engine(grid).load_state_dict({"0.weight": INPUTS.numpy()}),  # type: ignore[dict-item]
        subject="a ndarray",
        rule="to tensors",
    ),
    # -- order of calls
    use("save in a stream", within_stream(lambda ours: ours.save("nowhere")), subject="save()", rule=DRAINS),
    use("state_dict in a stream", within_stream(Engine.state_dict), subject="state_dict()", rule=DRAINS),
    use("predict in a stream", within_stream(lambda ours: ours.predict(INPUTS)), subject="predict()", rule=DRAINS),
    use("evaluate in a stream", within_stream(lambda ours: ours.evaluate([batch()])), rule=DRAINS),
    use("a stream in a stream", within_stream(lambda ours: ours.fit([batch()] * 4)), rule="are lost when a stream"),
    use(
        "a stream that ends early",
        lambda grid: streaming(grid).fit([batch()] * 8, on_batch=lambda loss, seconds: True),
        Unsupported,
        key="on_batch",
        legal="fewer batches in one call",
    ),
    use("a second pruning", prunes_twice, rule="pruned at most once"),
    use("train_batch after close", after_close(lambda ours: ours.train_batch(batch())), rule=LAST_CALL),
    use("train after close", after_close(lambda ours: list(ours.train([batch()]))), rule=LAST_CALL),
    use("evaluate after close", after_close(lambda ours: ours.evaluate([batch()])), rule=LAST_CALL),
    use("predict after close", after_close(lambda ours: ours.predict(INPUTS)), rule=LAST_CALL),
    use("gradients after close", after_close(lambda ours: ours.gradients(batch())), rule=LAST_CALL),
    use("state_dict after close", after_close(Engine.state_dict), rule=LAST_CALL),
    use("save after close", after_close(lambda ours: ours.save("nowhere")), rule=LAST_CALL),
    use("close between two losses", closes_while_it_trains, rule=LAST_CALL),
    use("zero_grad between batches", between_batches(nn.Module.zero_grad), subject=".grad", rule=OWNS),
    use("float64 between batches", between_batches(nn.Module.double), subject=".data", rule=OWNS),
    use("meta between batches", between_batches(lambda model: model.to("meta")), subject="weights on meta"),
    use("a second engine of the modules", has_two_engines, legal="the newest engine of these modules"),
    use("an evaluation from batches", calls_from_its_batches, rule="run one call at a time"),
    use("memory of threads", lambda grid: engine(TWO).memory(batch()), Unsupported, rule="counted per process"),
    use("a hook that is a name", lambda grid: engine(grid).fit([batch()], on_batch="print"), key="on_batch"),  # type: ignore[arg-type]
    use(
        "a hook of the loss alone",
        lambda grid: engine(grid).fit([batch()], on_batch=lambda loss: None),  # type: ignore[arg-type, misc]
        key="on_batch",
        subject="too many positional arguments",
    ),
]


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
    thread.join(TIME_LIMIT)
    if not errors:
        pytest.fail(f"no end within {TIME_LIMIT:.0f} s" if thread.is_alive() else "no error")
    return errors[0]


def sentence(error: BaseException) -> str:
    """The message of an error without addresses and temporary folders."""
    return re.sub(r"0x[0-9a-f]+|/tmp\S+", "", str(error))


@pytest.mark.parametrize("case", USES, ids=[case.name for case in USES])
def test_wrong_use_ends_in_one_sentence(case: Use) -> None:
    errors = [error_of(case.mistake, grid) for grid in (ONE, TWO)]
    for error in errors:
        with refused(case.kind, **case.expected):
            raise error
        assert "\n" not in str(error)
    assert len({sentence(error) for error in errors}) == 1


def fails(*tensors: torch.Tensor) -> torch.Tensor:
    raise KeyError("no such class")


OWN_ERRORS: list[tuple[str, Mistake, type[Exception], str, str]] = [
    ("targets of a wrong dtype", on_train((INPUTS, TARGETS.int())), RuntimeError, "target dtype", "loss=cross_entropy"),
    ("a class out of range", on_train((INPUTS, TARGETS + 9)), IndexError, "out of bounds", "loss=cross_entropy"),
    ("an error of the loss", on_train(batch(), loss=fails), KeyError, "no such class", "loss=fails"),
    (
        "an error of the scores",
        lambda grid: engine(grid, scores=fails, score_names=["a"]).score([batch()]),
        KeyError,
        "no such class",
        "scores=fails",
    ),
    ("inputs of a wrong width", on_train((INPUTS[:, 1:], TARGETS)), RuntimeError, "shapes cannot", "layer 0, Linear"),
    ("integers for a layer of floats", on_train((INPUTS.long(), TARGETS)), RuntimeError, "dtype", "layer 0, Linear"),
    (
        "inputs of a wrong width of a module",
        on_train((INPUTS[:, 1:], TARGETS), Blocks),
        RuntimeError,
        "shapes cannot",
        "layer 0, which begins at the inputs",
    ),
]


@pytest.mark.parametrize("grid", [ONE, TWO], ids=str)
@pytest.mark.parametrize(
    ("mistake", "kind", "message", "note"), [row[1:] for row in OWN_ERRORS], ids=[row[0] for row in OWN_ERRORS]
)
def test_error_of_user_code_names_its_place(
    mistake: Mistake, kind: type[Exception], message: str, note: str, grid: Grid
) -> None:
    error = error_of(mistake, grid)
    assert type(error) is kind
    assert message in str(error)
    assert len(error.__notes__) == 1
    assert note in error.__notes__[0]


@pytest.mark.parametrize("grid", [ONE, TWO], ids=str)
def test_second_close_does_nothing(grid: Grid) -> None:
    ours = engine(grid)
    ours.close()
    ours.close()
    assert ours.closed
