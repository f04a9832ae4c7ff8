"""Losses and gradients of a batch whose samples or tokens do not weigh the same equal those of a plain script."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import suite
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.engine import losses
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD
from suite.engine.replay.replay import Replay
from tests.support.drawn import cells, generator
from tests.support.refusals import refused

ROWS, LENGTH, WIDTH, CLASSES, PADDING = 8, 6, 5, 4, -100
GRIDS = [Grid(), Grid(inter=2), Grid(data=2), Grid(inter=2, data=2)]
WEIGHT = torch.tensor([0.2, 1.0, 3.0, 0.5], dtype=torch.float64)
Batch = tuple[torch.Tensor, torch.Tensor]


class ClassesSecond(nn.Module):
    """Logits of shape (rows, classes, length), as torch's losses take them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def network() -> nn.Sequential:
    torch.manual_seed(1)
    parts = (nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, CLASSES), ClassesSecond())
    return nn.Sequential(*parts).double()


def padded(number: int, microbatch: int) -> Batch:
    """Targets with other lengths in each row; those of the second microbatch are all padding."""
    rng = torch.Generator().manual_seed(number)
    targets = torch.randint(CLASSES, (ROWS, LENGTH), generator=rng)
    lengths = torch.randint(1, LENGTH + 1, (ROWS, 1), generator=rng)
    targets[torch.arange(LENGTH) >= lengths] = PADDING
    targets[microbatch : 2 * microbatch] = PADDING
    return torch.randn(ROWS, LENGTH, WIDTH, generator=rng, dtype=torch.float64), targets


def pair(logits: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor | None = None) -> tuple[Any, Any]:
    """What a user writes by hand."""
    total = cross_entropy(logits, targets, weight=weight, ignore_index=PADDING, reduction="sum")
    kept = targets[targets != PADDING]
    return total, len(kept) if weight is None else weight[kept].sum()


FORMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {  # loss of the plain script, and the engine's
    "padding, module": (cross_entropy, nn.CrossEntropyLoss()),
    "padding, helper": (cross_entropy, suite.cross_entropy),
    "padding, pair": (cross_entropy, pair),
    "weights, module": (partial(cross_entropy, weight=WEIGHT), nn.CrossEntropyLoss(WEIGHT)),
    "weights, helper": (partial(cross_entropy, weight=WEIGHT), partial(suite.cross_entropy, weight=WEIGHT)),
    "weights, pair": (partial(cross_entropy, weight=WEIGHT), partial(pair, weight=WEIGHT)),
    "smoothing": (
        partial(cross_entropy, weight=WEIGHT, label_smoothing=0.1),
        nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1),
    ),
    "likelihood": (
        lambda x, y: nn.functional.nll_loss(x, y, WEIGHT),
        nn.NLLLoss(WEIGHT),
    ),
}


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize(
    ("form", "grid", "microbatch"),
    cells(FORMS, GRIDS, (1, 2, 4), n=6, always=[("padding, pair", GRIDS[3], 2)]),
    ids=str,
)
def test_counted_loss_equals_plain_script(form: str, grid: Grid, microbatch: int, replays: bool) -> None:
    """Losses of three updates, gradients, and an evaluation of batches of other sizes, within 1e-11."""
    plain_loss, loss = FORMS[form]
    model, batches = network(), [padded(number, microbatch) for number in range(3)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    expected, gradients = [], []
    for inputs, targets in batches:
        optimizer.zero_grad()
        value = plain_loss(model(inputs), targets)
        value.backward()
        gradients = gradients or [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        expected.append(value.item())

    make: Any = Replay if replays else Engine
    engine = make(network(), loss=loss, optimizer=SGD(lr=0.3), microbatch=microbatch, grid=grid)
    if not replays:
        torch.testing.assert_close(engine.gradients(batches[0]), gradients, rtol=0, atol=1e-11)
    assert list(engine.train(batches)) == pytest.approx(expected, rel=0, abs=1e-11)

    held_out = [tuple(tensor[:rows] for tensor in padded(9, 2)) for rows in (8, 5)]
    model.eval()
    with torch.no_grad():
        inputs, targets = (torch.cat(tensors) for tensors in zip(*held_out, strict=True))
        assert engine.evaluate(held_out) == pytest.approx(float(plain_loss(model(inputs), targets)), rel=0, abs=1e-11)


UNEVEN: dict[str, Callable[..., Any]] = {
    "padding": cross_entropy,
    "weights": partial(cross_entropy, weight=WEIGHT),
    "a wrong pair": lambda x, y: (cross_entropy(x, y), (y != PADDING).sum()),
}
CALLS: dict[str, Callable[[Engine, Batch], Any]] = {
    "train": lambda engine, batch: list(engine.train([batch])),
    "evaluate": lambda engine, batch: engine.evaluate([batch]),
    "gradients": lambda engine, batch: engine.gradients(batch),
}


def even_and_uneven() -> tuple[Batch, Batch]:
    """A batch whose microbatches of two rows weigh the same, also with WEIGHT, and one whose rows do not."""
    inputs, _ = padded(0, 2)
    targets = torch.arange(LENGTH).remainder(CLASSES).expand(ROWS, LENGTH).contiguous()
    uneven = targets.clone()
    uneven[0, 3:] = uneven[5, 1:] = PADDING
    return (inputs, targets), (inputs, uneven)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("loss", UNEVEN)
def test_uneven_loss_is_refused_at_its_first_batch(loss: str, call: str) -> None:
    data, microbatch = generator(loss, call).choice([(1, 2), (2, 2), (2, 4)])
    grid = Grid(data=data)
    engine = Engine(network(), loss=UNEVEN[loss], optimizer=SGD(lr=0.1), microbatch=microbatch, grid=grid)
    even, uneven = even_and_uneven()
    before = [engine.train_batch(even) for _ in range(2)] if loss != "a wrong pair" else []
    assert all(before)
    weights = engine.state_dict()
    with refused(InvalidRequest, "loss", rule="(sum, count)"):
        CALLS[call](engine, uneven)
    torch.testing.assert_close(dict(engine.state.stage.layers.named_parameters()), weights, rtol=0, atol=0)


@pytest.mark.parametrize(("every", "refused"), [(1, [True, True, True]), (2, [True, False, True]), (0, [False] * 3)])
def test_check_may_be_rarer_or_off(every: int, refused: list[bool]) -> None:
    """check_loss=2 looks at the first and the third batch, 0 at none."""
    even, uneven = even_and_uneven()
    for place, expected in enumerate(refused):
        engine = Engine(network(), loss=cross_entropy, optimizer=SGD(lr=0.1), microbatch=2, check_loss=every)
        batches = [even, even, even]
        batches[place] = uneven
        with pytest.raises(InvalidRequest) if expected else nullcontext():
            list(engine.train(batches))


def test_check_calls_a_loss_once_per_batch_and_leaves_no_trace() -> None:
    """Losses with random numbers and with statistics train bit-identically with and without the check."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.norm = nn.BatchNorm1d(CLASSES, affine=False, dtype=torch.float64)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return mse_loss(self.norm(x) + torch.randn_like(x), torch.zeros_like(x))

    def trained(loss: Any, every: int) -> list[float]:
        engine = Engine(network(), loss=loss, optimizer=SGD(lr=0.1), microbatch=2, check_loss=every)
        return list(engine.train([even_and_uneven()[0]] * 3))

    checked, off = Noisy(), Noisy()
    assert trained(checked, 1) == trained(off, 0)
    torch.testing.assert_close(dict(checked.named_buffers()), dict(off.named_buffers()), rtol=0, atol=0)
    assert (off.calls, checked.calls) == (12, 12 + 3)  # one call, and two that find the random numbers

    calls = []
    assert trained(lambda x, y: calls.append(len(x)) or cross_entropy(x, y), 1)
    assert calls == [2, 2, 2, 2, ROWS] * 3


@pytest.mark.parametrize("call", ["evaluate", "gradients"])
def test_an_interrupted_batch_is_no_part_of_the_next_check(call: str) -> None:
    """The loss fails on the second microbatch; in the next batch the last microbatch alone weighs less."""
    (inputs, targets), _ = even_and_uneven()
    wrong, uneven = targets.clone(), targets.clone()
    uneven[-1, 1:] = PADDING
    wrong[2:] = CLASSES
    engine = Engine(network(), loss=cross_entropy, optimizer=SGD(lr=0.1), microbatch=2)
    with pytest.raises(IndexError):
        CALLS[call](engine, (inputs, wrong))
    with refused(InvalidRequest, "loss", subject="of 4 microbatches"):
        CALLS[call](engine, (inputs, uneven))


def test_large_outputs_are_checked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last microbatch alone is uneven, and outputs of two microbatches are held at a time."""
    monkeypatch.setattr(losses, "HELD_BYTES", 1)
    (inputs, _), (_, uneven) = even_and_uneven()
    engine = Engine(network(), loss=cross_entropy, optimizer=SGD(lr=0.1), microbatch=2)
    with refused(InvalidRequest, "loss", subject="of 2 microbatches"):
        engine.train_batch((inputs, uneven[[1, 2, 3, 4, 6, 7, 0, 1]]))


def test_pair_in_a_stream_is_divided_at_once() -> None:
    """An update of one microbatch divides by its own count; updates of several have no common count."""
    batches = [padded(number, ROWS) for number in range(2)]

    def trained(loss: Any, **more: Any) -> list[float]:
        return list(Engine(network(), loss=loss, optimizer=SGD(lr=0.1), microbatch=ROWS, **more).train(batches))

    assert trained(pair, update_interval=1) == pytest.approx(trained(cross_entropy), rel=0, abs=1e-11)
    with refused(Unsupported, legal="update_interval=1 on one replica"):
        trained(pair, update_interval=2)


def test_a_batch_that_counts_nothing_and_a_changing_form_are_refused() -> None:
    inputs, targets = padded(0, 2)
    engine = Engine(network(), loss=pair, optimizer=SGD(lr=0.1), microbatch=2, grid=Grid(inter=2))
    with refused(InvalidRequest, subject="counts 0"):
        engine.train_batch((inputs, torch.full_like(targets, PADDING)))
    changing = iter([True] * 5)

    def loss(x: torch.Tensor, y: torch.Tensor) -> Any:
        return pair(x, y) if next(changing, False) else cross_entropy(x, y)

    engine = Engine(network(), loss=loss, optimizer=SGD(lr=0.1), microbatch=2)
    engine.train_batch((inputs, targets))
    with refused(InvalidRequest, "loss", rule="means always, or pairs always"):
        engine.train_batch((inputs, targets))


def test_statistics_of_microbatches_are_noted_once() -> None:
    """BatchNorm sees 2 rows at a time where the plain script sees 8."""

    def notes(microbatch: int) -> list[str]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))
        engine = Engine(model, loss=cross_entropy, optimizer=SGD(lr=0.1), microbatch=microbatch, grid=Grid(inter=2))
        batch = torch.randn(ROWS, WIDTH), torch.randint(CLASSES, (ROWS,))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(engine.train([batch, batch]))
        return [str(warning.message) for warning in caught]

    (note,) = notes(microbatch=2)
    assert "BatchNorm1d" in note
    assert "2 samples" in note
    assert notes(microbatch=ROWS) == []
