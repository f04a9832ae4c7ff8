"""Split backward pass: ops I and W give the bits of a whole backward pass."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from suite.comm.p2p import threads
from suite.core.errors import IllegalSchedule, InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.core.protocols import Read, Value
from suite.engine import split_backward
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD, AdamW
from suite.engine.pruning import Pruning
from suite.engine.random_state import drawing
from suite.engine.split_backward import check_splittable
from suite.engine.stage import Stage
from suite.models import convnet, gnmt, gpt, recurrent
from suite.schedule.message_driven_split import MessageDrivenSplit
from suite.schedule.one_f_one_b import OneFOneB
from suite.schedule.staircase import Staircase
from suite.workload import Transformer
from suite.workload.convnet import VGG
from suite.workload.recurrent import GNMT, ResidualLSTM
from tests.support.cases import Case, engine_of, gpt_case, odd_case
from tests.support.masked import FixedMask, random_mask
from tests.support.refusals import refused

KEEP, RECOMPUTE = Read(0, 0, "keep"), Read(0, 0, "recompute")
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
ORDERS = {
    "at once": "I0 W0 I1 W1 I2 W2",
    "late": "I0 I1 I2 W0 W1 W2",
    "one late": "I0 I1 W0 I2 W1 W2",
}


class Model:
    """Layers of one stage with a loss, and its microbatches.

    Args:
        layers: layers(dtype) -> functions that make the layers.
        sample: sample(generator, dtype) -> inputs and targets of a microbatch.
    """

    def __init__(
        self,
        layers: Callable[[torch.dtype], Sequence[Callable[[], nn.Module]]],
        loss: Callable[..., torch.Tensor],
        sample: Callable[[torch.Generator, torch.dtype], tuple[Value, Value]],
    ) -> None:
        self.layers, self.loss, self.sample = layers, loss, sample

    def stage(self, dtype: torch.dtype, interval: int | None = None) -> Stage:
        layers = []
        for number, make in enumerate(self.layers(dtype)):
            with drawing(1, number, 0):
                layers.append(make())
        return Stage(layers, seed=1, loss=self.loss, checkpoint_interval=interval)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _odd(dtype: torch.dtype) -> Sequence[Callable[[], nn.Module]]:
    return odd_case(dtype).layers


def _tokens(shape: Any) -> Callable[[torch.Generator, torch.dtype], tuple[Value, Value]]:
    def sample(generator: torch.Generator, dtype: torch.dtype) -> tuple[Value, Value]:
        x = torch.randint(1, shape.vocabulary, (2, shape.sequence), generator=generator)
        return (x,), (x.roll(-1, 1),)

    return sample


TEXT = Transformer(3, 16, 2, 6, 11, tied=False)
IMAGES = VGG((4, 8), (1, 2), hidden=12, image=16, colours=1, classes=10)
NORMED_IMAGES = VGG((4, 8), (1, 2), dense=1, norm=True, image=16, colours=1, classes=10)
REVIEWS = ResidualLSTM(2, 6, 10, sequence=5, vocabulary=9, classes=3)
PAIRS = GNMT(3, 2, 4, sequence=5, vocabulary=9)
MODELS = {
    "gpt": Model(lambda d: gpt.layers(TEXT, dropout=0.3, dtype=_name(d)), gpt.loss, _tokens(TEXT)),
    "mlp": Model(
        _odd,
        F.cross_entropy,
        lambda g, d: (
            (torch.randn(3, 7, generator=g, dtype=torch.float64).to(d),),
            (torch.randint(0, 3, (3,), generator=g),),
        ),
    ),
    **{
        name: Model(
            lambda d, shape=shape: convnet.layers(shape, dtype=_name(d)),
            convnet.loss,
            lambda g, d: (
                (torch.randint(0, 256, (2, 1, 16, 16), generator=g, dtype=torch.uint8),),
                (torch.randint(0, 10, (2,), generator=g),),
            ),
        )
        for name, shape in (("vgg", IMAGES), ("vgg norm", NORMED_IMAGES))
    },
    "lstm": Model(
        lambda d: recurrent.layers(REVIEWS, dropout=0.3, dtype=_name(d)),
        recurrent.loss,
        lambda g, d: (_tokens(REVIEWS)(g, d)[0], (torch.randint(0, 3, (2,), generator=g),)),
    ),
    "gnmt": Model(
        lambda d: gnmt.layers(PAIRS, dropout=0.3, dtype=_name(d)),
        gnmt.loss,
        lambda g, d: (2 * _tokens(PAIRS)(g, d)[0], _tokens(PAIRS)(g, d)[1]),
    ),
}


def gradients_of(stage: Stage) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in stage.layers.parameters()]


def run(stage: Stage, microbatches: Sequence[tuple[Value, Value]], order: str, read: Read = KEEP) -> list[Any]:
    """Losses, input gradients and gradients of weights after all forward passes and the ops of `order`."""
    losses = [
        stage.forward(index, inputs, targets=targets, sample=10 + index, scale=0.5, read=read)[0]
        for index, (inputs, targets) in enumerate(microbatches)
    ]
    into: list[torch.Tensor] = []
    for op in order.split():
        kind, index = op[0], int(op[1:])
        if kind == "W":
            stage.weight_gradients(index)
        else:
            into += stage.backward(index, (), whole=kind == "B")
    assert not stage.open
    stage.check_paid()
    return [*losses, *into, *gradients_of(stage)]


def assert_same_bits(left: Sequence[torch.Tensor | None], right: Sequence[torch.Tensor | None]) -> None:
    for number, (a, b) in enumerate(zip(left, right, strict=True)):
        assert (a is None) == (b is None), number
        assert a is None or b is None or torch.equal(a, b), number


def whole_order(order: str) -> str:
    return " ".join(op.replace("I", "B") for op in order.split() if op[0] == "I")


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
@pytest.mark.parametrize("dtype", DTYPES, ids=_name)
@pytest.mark.parametrize("name", MODELS)
def test_split_is_bit_equal_to_whole(name: str, dtype: torch.dtype, order: str) -> None:
    model = MODELS[name]
    microbatches = [model.sample(torch.Generator().manual_seed(n), dtype) for n in range(3)]
    whole, split = (run(model.stage(dtype), microbatches, o) for o in (whole_order(order), order))
    assert_same_bits(whole, split)


@pytest.mark.parametrize("read", [KEEP, RECOMPUTE], ids=["keep", "recompute"])
@pytest.mark.parametrize("interval", [None, 1])
@pytest.mark.parametrize("name", MODELS)
def test_split_of_recomputed_passes_is_bit_equal(name: str, interval: int | None, read: Read) -> None:
    model = MODELS[name]
    microbatches = [model.sample(torch.Generator().manual_seed(n), torch.float32) for n in range(3)]
    order = "I1 I0 W1 I2 W0 W2"
    whole = run(model.stage(torch.float32), microbatches, whole_order(order))
    assert_same_bits(whole, run(model.stage(torch.float32, interval), microbatches, order, read))


# -- single graphs ---------------------------------------------------------------------------------------------------


class Call(nn.Module):
    """A module whose forward pass is a function of its parameters `a`, `b`, `c` and its input."""

    def __init__(self, function: Callable[[Any, torch.Tensor], torch.Tensor], **shapes: Sequence[int]) -> None:
        super().__init__()
        self.function = function
        for number, (name, shape) in enumerate(shapes.items()):
            values = torch.randn(*shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
            self.register_parameter(name, nn.Parameter(values.float()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


class _Cut(torch.autograd.Function):
    """A user's function that gives its input no gradient at all."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        return None


class _Scale(torch.autograd.Function):
    """A user's function, of which autograd knows nothing more."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x


def _gradient_penalty(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = F.linear(x, m.a, m.b)
    (gradient,) = torch.autograd.grad(y.tanh().sum(), x, create_graph=True)
    return y + gradient.pow(2).sum()


def _transposed_once(m: Any, x: torch.Tensor) -> torch.Tensor:
    transposed = m.a.t()
    output: torch.Tensor = (x @ transposed).tanh() @ transposed
    return output


def _transposed_and_summed(m: Any, x: torch.Tensor) -> torch.Tensor:
    transposed = m.a.t()
    output: torch.Tensor = x @ transposed + transposed.sum(0)
    return output


def _nested(function: Callable[[Any, torch.Tensor], torch.Tensor], *, reentrant: bool) -> Any:
    return lambda m, x: checkpoint(partial(function, m), x, use_reentrant=reentrant)


def _linear(m: Any, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, m.a, m.b)


SQUARE = {"a": (5, 5), "b": (5,)}
# by name: the module's function, its parameters, the input's shape, and the parameters that op W gives a gradient
CALLS: dict[
    str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], Mapping[str, Sequence[int]], Sequence[int], str]
] = {
    "linear": (_linear, SQUARE, (4, 5), "ab"),
    "no bias": (lambda m, x: F.linear(x, m.a), {"a": (3, 5)}, (4, 5), "a"),
    "one row": (_linear, SQUARE, (1, 5), "ab"),
    "one column": (_linear, {"a": (1, 1), "b": (1,)}, (4, 1), "ab"),
    "vector input": (lambda m, x: F.linear(x.sum(0), m.a, m.b), SQUARE, (4, 5), "ab"),
    "three dimensions": (_linear, SQUARE, (2, 4, 5), "ab"),
    "three dimensions, no bias": (lambda m, x: F.linear(x, m.a), {"a": (3, 5)}, (2, 4, 5), "a"),
    "four dimensions": (_linear, SQUARE, (2, 2, 4, 5), "ab"),
    "transposed input": (lambda m, x: F.linear(x.transpose(0, 1), m.a, m.b), SQUARE, (4, 2, 5), "a"),
    "strided input": (lambda m, x: F.linear(x[..., ::2], m.a, m.b), SQUARE, (4, 10), "ab"),
    "expanded input": (lambda m, x: F.linear(x.expand(4, 5), m.a, m.b), SQUARE, (1, 5), "ab"),
    "in place after": (lambda m, x: F.linear(x, m.a, m.b).relu_(), SQUARE, (2, 4, 5), "ab"),
    "residual": (lambda m, x: x + F.linear(x, m.a, m.b), SQUARE, (4, 5), "ab"),
    "matmul": (lambda m, x: x @ m.a, {"a": (5, 3)}, (4, 5), "a"),
    "column-major": (lambda m, x: x @ m.a.t(), {"a": (3, 5)}, (4, 5), "a"),
    "addmm": (lambda m, x: torch.addmm(m.b, x, m.a), SQUARE, (4, 5), "ab"),
    "addmm, matrix": (lambda m, x: torch.addmm(m.b, x, m.a), {"a": (5, 5), "b": (4, 5)}, (4, 5), "ab"),
    "addmm, scaled": (lambda m, x: torch.addmm(m.b, x, m.a, beta=0.5, alpha=3), SQUARE, (4, 5), ""),
    "used twice": (lambda m, x: _linear(m, _linear(m, x).tanh()), SQUARE, (4, 5), "ab"),
    "transposed once, used twice": (
        _transposed_once,
        {"a": (5, 5)},
        (4, 5),
        "a",
    ),
    "used both ways": (lambda m, x: (x @ m.a).tanh() @ m.a.t(), {"a": (5, 5)}, (4, 5), "a"),
    "used three times": (lambda m, x: _linear(m, _linear(m, _linear(m, x).tanh()).tanh()), SQUARE, (4, 5), ""),
    "used otherwise too": (lambda m, x: F.linear(x * m.a[0], m.a, m.b), SQUARE, (4, 5), ""),
    "bias used otherwise too": (lambda m, x: F.linear(x * m.b, m.a, m.b), SQUARE, (4, 5), ""),
    "transpose used otherwise too": (
        _transposed_and_summed,
        {"a": (5, 5)},
        (4, 5),
        "",
    ),
    "shared by a mixed product": (
        lambda m, x: F.linear(F.linear(x, m.a, m.b).tanh(), m.c, m.b) * m.a.sum(),
        {**SQUARE, "c": (5, 5)},
        (4, 5),
        "",
    ),
    "scaled weight": (lambda m, x: F.linear(x, m.a * 2, m.b), SQUARE, (4, 5), ""),
    "input without gradient": (lambda m, x: x + F.linear(x.detach(), m.a, m.b), SQUARE, (4, 5), ""),
    "input of weights alone": (
        lambda m, x: x * F.linear(F.linear(x.detach(), m.a), m.c).mean(),
        {"a": (5, 5), "c": (5, 5)},
        (4, 5),
        "c",
    ),
    "unused output": (lambda m, x: (F.linear(x, m.a, m.b), x)[1], SQUARE, (4, 5), ""),
    "output without gradient": (lambda m, x: F.linear(x, m.a, m.b).detach() + x, SQUARE, (4, 5), ""),
    "custom function": (lambda m, x: _Scale.apply(F.linear(x, m.c), m.a), {"a": (5, 5), "c": (5, 5)}, (4, 5), "c"),
    "output of undefined gradient": (
        lambda m, x: x + _Cut.apply(F.linear(x, m.a, m.b)) + F.linear(x, m.c),
        {**SQUARE, "c": (5, 5)},
        (4, 5),
        "c",
    ),
    "gradient penalty": (_gradient_penalty, SQUARE, (4, 5), ""),
    "checkpoint": (_nested(_linear, reentrant=False), SQUARE, (4, 5), ""),
    "reentrant checkpoint": (_nested(_linear, reentrant=True), SQUARE, (4, 5), ""),
    "beside a reentrant checkpoint": (
        lambda m, x: _nested(_linear, reentrant=True)(m, F.linear(x, m.c).tanh()),
        {**SQUARE, "c": (5, 5)},
        (4, 5),
        "",
    ),
    "beside a checkpoint": (
        lambda m, x: _nested(_linear, reentrant=False)(m, F.linear(x, m.c).tanh()),
        {**SQUARE, "c": (5, 5)},
        (4, 5),
        "c",
    ),
    "conv1d": (lambda m, x: F.conv1d(x, m.a, m.b, padding=1), {"a": (4, 3, 3), "b": (4,)}, (2, 3, 7), "ab"),
    "conv2d": (lambda m, x: F.conv2d(x, m.a, m.b), {"a": (4, 3, 3, 3), "b": (4,)}, (2, 3, 7, 7), "ab"),
    "conv2d, no bias": (lambda m, x: F.conv2d(x, m.a, stride=2), {"a": (4, 3, 3, 3)}, (2, 3, 7, 7), "a"),
    "conv2d, grouped": (
        lambda m, x: F.conv2d(x, m.a, m.b, groups=3, dilation=2),
        {"a": (6, 1, 3, 3), "b": (6,)},
        (2, 3, 7, 7),
        "ab",
    ),
    "conv2d, channels last": (
        lambda m, x: F.conv2d(x.to(memory_format=torch.channels_last), m.a, m.b),
        {"a": (4, 3, 3, 3), "b": (4,)},
        (2, 3, 7, 7),
        "ab",
    ),
    "conv3d": (lambda m, x: F.conv3d(x, m.a, m.b), {"a": (4, 2, 3, 3, 3), "b": (4,)}, (2, 2, 5, 5, 5), "ab"),
    "transposed conv2d": (
        lambda m, x: F.conv_transpose2d(x, m.a, m.b, stride=2),
        {"a": (3, 4, 3, 3), "b": (4,)},
        (2, 3, 5, 5),
        "ab",
    ),
    "conv used twice": (
        lambda m, x: F.conv1d(F.conv1d(x, m.a, m.b, padding=1).tanh(), m.a, m.b, padding=1),
        {"a": (3, 3, 3), "b": (3,)},
        (2, 3, 7),
        "ab",
    ),
}


def _frozen(module: nn.Module, names: str) -> nn.Module:
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


def split_and_whole(
    make: Callable[[], nn.Module], shape: Sequence[int], dtype: torch.dtype = torch.float32
) -> tuple[Stage, list[str]]:
    """Assert the same bits after B and after I and W. Returns the stage, and the weights with a gradient from W."""
    x = [torch.randn(*shape, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in range(4)]
    results, late = [], []
    for whole in (True, False):
        stage = Stage([make().to(dtype)])
        for number, first in ((0, True), (1, False)):
            (y,) = stage.forward(number, (x[number].to(dtype),), sample=0, read=KEEP)
            gradient = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape).to(dtype)
            into = stage.backward(number, (gradient,), whole=whole)
            if not whole:
                before = [None if p.grad is None else p.grad.clone() for p in stage.layers.parameters()]
                stage.weight_gradients(number)
                if first:
                    late = [
                        name.rpartition(".")[2]
                        for (name, p), old in zip(stage.layers.named_parameters(), before, strict=True)
                        if p.grad is not None and (old is None or not torch.equal(old, p.grad))
                    ]
        results.append([*into, *gradients_of(stage)])
    assert_same_bits(*results)
    return stage, late


@pytest.mark.parametrize("dtype", DTYPES, ids=_name)
@pytest.mark.parametrize("name", CALLS)
def test_uses_of_weights(name: str, dtype: torch.dtype) -> None:
    function, parameters, shape, deferred = CALLS[name]
    _, late = split_and_whole(partial(Call, function, **parameters), shape, dtype)
    assert "".join(late) == deferred


@pytest.mark.parametrize(("frozen", "deferred"), [("a", ""), ("b", "a"), ("ab", "")])
@pytest.mark.parametrize("name", ["linear", "conv2d"])
def test_frozen_weights_stay_without_gradient(name: str, frozen: str, deferred: str) -> None:
    function, parameters, shape, _ = CALLS[name]
    _, late = split_and_whole(lambda: _frozen(Call(function, **parameters), frozen), shape)
    assert "".join(late) == deferred


@pytest.mark.parametrize("need_weights", [True, False])
def test_multi_head_attention(need_weights: bool) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with drawing(1, 0, 0):
                self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.attention(x, x, x, need_weights=need_weights)[0]
            return output

    _, late = split_and_whole(Attention, (2, 4, 6))
    assert {"in_proj_weight", "weight"} <= set(late)


def test_transformer_encoder_layer() -> None:
    def make() -> nn.Module:
        with drawing(1, 0, 0):
            return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)

    _, late = split_and_whole(make, (3, 2, 8))
    assert {"in_proj_weight", "weight"} <= set(late)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=_name)
def test_lstm_cells_of_torch(dtype: torch.dtype) -> None:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with drawing(1, 0, 0):
                self.lstm, self.cell = nn.LSTM(4, 4, 2, batch_first=True), nn.LSTMCell(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.lstm(x)[0]
            h: torch.Tensor = self.cell(y[:, 0])[0]
            return h

    split_and_whole(Cells, (2, 3, 4), dtype)


def test_parametrized_weights_stay_in_the_input_gradient() -> None:
    def make() -> nn.Module:
        with drawing(1, 0, 0):
            return nn.utils.parametrizations.weight_norm(nn.Linear(5, 5))

    _, late = split_and_whole(make, (4, 5))
    assert late == []


def test_weights_of_other_classes_stay_in_the_input_gradient() -> None:
    """A subclass of a tensor may have products of its own."""

    class Quantized(nn.Parameter):
        pass

    def make() -> nn.Module:
        module = Call(_linear, b=(5,))
        module.a = Quantized(torch.ones(5, 5))
        return module

    _, late = split_and_whole(make, (4, 5))
    assert late == []


# -- sums over passes ------------------------------------------------------------------------------------------------


class Alternating(nn.Module):
    """A weight that is used by linear layers alone in every second pass, and otherwise too in the others."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        with drawing(1, 0, 0):
            self.linear, self.calls, self.reentrant = nn.Linear(5, 5), 0, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls % 2:
            return self.linear(x)
        return checkpoint(self.linear, x, use_reentrant=True) if self.reentrant else self.linear(x * self.linear.bias)


@pytest.mark.parametrize("reentrant", [False, True])
def test_owed_gradient_is_paid_before_its_leaf_gets_another(reentrant: bool) -> None:
    """Floating sums keep the order of passes where a weight changes between ops I and W."""
    inputs = [torch.randn(4, 5, generator=torch.Generator().manual_seed(n)) for n in range(6)]
    results = []
    for whole in (True, False):
        stage = Stage([Alternating(reentrant=reentrant)])
        for number, x in enumerate(inputs):
            stage.forward(number, (x,), sample=0, read=KEEP)
        for number in range(6):
            stage.backward(number, (inputs[number - 1],), whole=whole)
        for number in range(0 if whole else 6):
            stage.weight_gradients(number)
        results.append(gradients_of(stage))
    assert_same_bits(*results)


@pytest.mark.parametrize("name", ["linear", "used twice", "used both ways", "conv used twice"])
def test_large_gradients_are_added_one_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of autograd for each weight, whose two terms it adds first."""
    monkeypatch.setattr(split_backward, "_CALL_BYTES", 1)
    function, parameters, shape, deferred = CALLS[name]
    _, late = split_and_whole(partial(Call, function, **parameters), shape)
    assert "".join(late) == deferred


@pytest.mark.parametrize("interval", [None, 1])
def test_weight_of_two_layers_of_a_stage(interval: int | None) -> None:
    """With checkpoints each layer has a graph, whose gradients are added one after the other."""
    x = [torch.randn(4, 5, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    results = []
    for order in ("B0 B1", "I0 I1 W0 W1"):
        with drawing(1, 0, 0):
            linear = nn.Linear(5, 5)
        mixed = Call(lambda m, x: x * m.weight[0])
        mixed.weight = linear.weight
        stage = Stage([mixed, linear, nn.Tanh(), linear], checkpoint_interval=interval)
        for index in (0, 1):
            stage.forward(index, (x[index],), sample=0, read=KEEP)
        for op in order.split():
            if op[0] == "W":
                stage.weight_gradients(int(op[1]))
            else:
                stage.backward(int(op[1]), (x[2],), whole=op[0] == "B")
        results.append(gradients_of(stage))
    assert_same_bits(*results)


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[tuple[str, int, int]], int, list[tuple[int, ...]]]:
    """Uses of shared square weights in a random chain: (operation, weight, where the input comes from)."""
    width = draw(st.integers(1, 4))
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["linear", "no bias", "transposed", "matmul", "scale", "tanh", "add", "sequence"]),
                st.integers(0, 2),
                st.integers(0, 3),
            ),
            min_size=1,
            max_size=8,
        )
    )
    return steps, width, [draw(st.sampled_from([(3,), (1,), (2, 3)]))]


@settings(max_examples=60, deadline=None)
@given(networks(), st.sampled_from(DTYPES), st.sampled_from(list(ORDERS.values())))
def test_random_networks(
    network: tuple[list[tuple[str, int, int]], int, list[tuple[int, ...]]], dtype: torch.dtype, order: str
) -> None:
    steps, width, (rows,) = network

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        values = [x]
        for operation, number, back in steps:
            value, weight, bias = (
                values[max(0, len(values) - 1 - back)],
                getattr(m, f"w{number}"),
                getattr(m, f"v{number}"),
            )
            if operation == "linear":
                value = F.linear(value, weight, bias)
            elif operation == "no bias":
                value = F.linear(value, weight)
            elif operation == "transposed":
                value = value @ weight.t()
            elif operation == "matmul":
                value = value @ weight
            elif operation == "scale":
                value = value * bias
            elif operation == "tanh":
                value = value.tanh()
            elif operation == "add":
                value = value + values[-1]
            else:
                value = F.linear(value.unsqueeze(0).transpose(0, -2), weight).transpose(0, -2).squeeze(0)
            values.append(value)
        return sum(values[1:], values[0])

    shapes = {f"{name}{n}": shape for n in range(3) for name, shape in (("w", (width, width)), ("v", (width,)))}
    inputs = [
        torch.randn(*rows, width, generator=torch.Generator().manual_seed(n), dtype=torch.float64).to(dtype)
        for n in range(3)
    ]

    def loss(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (y * target).mean()

    results = [
        run(
            Stage([Call(forward, **shapes).to(dtype)], loss=loss),
            [((x,), (x.roll(1),)) for x in inputs],
            kinds,
        )
        for kinds in (whole_order(order), order)
    ]
    assert_same_bits(*results)


# -- hooks of users --------------------------------------------------------------------------------------------------


def test_hooks_on_weights_run_once_on_whole_gradients() -> None:
    """Tensor hooks, post-accumulate hooks and hooks on a weight's transpose see what they see in op B."""
    seen: dict[bool, list[Any]] = {True: [], False: []}
    for whole in (True, False):
        with drawing(1, 0, 0):
            linear = nn.Linear(5, 5)

        def double(gradient: torch.Tensor, whole: bool = whole) -> torch.Tensor:
            seen[whole].append(gradient.clone())
            return gradient * 2

        def after(parameter: torch.Tensor, whole: bool = whole) -> None:
            assert parameter.grad is not None
            seen[whole].append(parameter.grad.clone())

        linear.weight.register_hook(double)
        assert linear.bias is not None
        linear.bias.register_post_accumulate_grad_hook(after)

        def forward(m: Any, x: torch.Tensor, double: Any = double, linear: Any = linear) -> torch.Tensor:
            transposed = linear.weight.t()
            transposed.register_hook(double)
            return linear(x) @ transposed

        stage = Stage([Call(forward)])
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
        stage.forward(0, (x,), sample=0, read=KEEP)
        stage.backward(0, (x,), whole=whole)
        if not whole:
            assert seen[False] == []
            stage.weight_gradients(0)
        seen[whole] += [linear.weight.grad, linear.bias.grad]
    assert sorted(map(torch.Tensor.tolist, seen[True]), key=str) == sorted(
        map(torch.Tensor.tolist, seen[False]), key=str
    )
    assert len(seen[True]) == 2 + 1 + 2  # by the hooks on the weight and its transpose, on the bias, and in the end


def test_hooks_on_the_node_that_accumulates_run_in_op_w() -> None:
    """Data-parallel wrappers of users hook this node to start a reduction."""
    calls: list[str] = []
    linear = nn.Linear(5, 5)
    node = linear.weight.expand_as(linear.weight).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    node.register_hook(lambda *_: calls.append("reduced"))
    stage = Stage([linear])
    stage.forward(0, (torch.ones(4, 5),), sample=0, read=KEEP)
    stage.backward(0, (torch.ones(4, 5),), whole=False)
    assert calls == []
    stage.weight_gradients(0)
    assert calls == ["reduced"]


def test_retained_gradients_of_activations() -> None:
    seen: list[Any] = []

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, m.a, m.b)
        y.retain_grad()
        seen.append(y)
        return y.tanh()

    split_and_whole(partial(Call, forward, **SQUARE), (4, 5))
    assert torch.equal(seen[0].grad, seen[2].grad)
    assert torch.equal(seen[1].grad, seen[3].grad)


def test_hooks_on_outputs_change_weight_gradients() -> None:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, m.a, m.b)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * 3)
        return y

    _, late = split_and_whole(partial(Call, forward, **SQUARE), (4, 5))
    assert late == ["a", "b"]


def test_module_backward_hooks_change_weight_gradients() -> None:
    def make() -> nn.Module:
        with drawing(1, 0, 0):
            linear = nn.Linear(5, 5)
        linear.register_full_backward_pre_hook(lambda module, gradients: (gradients[0] * 3,))
        linear.register_full_backward_hook(lambda module, into, out: (into[0] * 5,))
        return linear

    _, late = split_and_whole(make, (4, 5))
    assert late == ["weight", "bias"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_modules(backend: str) -> None:
    """aot_eager has one node for all products of a compiled module, so they stay in op I."""

    def make() -> nn.Module:
        with drawing(1, 0, 0):
            linear = nn.Linear(5, 5)
            other = nn.Linear(5, 5)
        compiled: nn.Module = torch.compile(linear, backend=backend)
        return nn.Sequential(OrderedDict(compiled=compiled, other=other))

    _, late = split_and_whole(make, (4, 5))
    assert late == ["weight", "bias"] * (2 if backend == "eager" else 1)


def test_wrappers_that_reduce_gradients_are_refused() -> None:
    class FSDPModule:
        __module__ = "torch.distributed.fsdp"

    class Sharded(FSDPModule, nn.Linear):
        pass

    with refused(Unsupported, subject="a split backward pass of a FSDPModule", rule="it reduces gradients"):
        check_splittable([nn.ReLU(), Sharded(2, 2)])
    stage = Stage([nn.Sequential(Sharded(2, 2))])
    stage.forward(0, (torch.ones(1, 2),), sample=0, read=KEEP)
    with pytest.raises(Unsupported):
        stage.backward(0, (torch.ones(1, 2),), whole=False)


def test_torch_still_has_the_refused_wrappers() -> None:
    from torch.distributed import fsdp

    for kind in (nn.parallel.DistributedDataParallel, fsdp.FullyShardedDataParallel, fsdp.FSDPModule):
        with refused(Unsupported, subject=kind.__name__):
            check_splittable([object.__new__(type("Wrapped", (kind,), {}))])


@pytest.mark.parametrize("package", ["megatron.core.tensor_parallel.layers", "fairscale.nn.model_parallel.layers"])
@pytest.mark.parametrize("name", ["ColumnParallelLinear", "RowParallelLinear"])
def test_tensor_parallel_layers_that_cannot_defer_are_refused(package: str, name: str) -> None:
    kind = type(name, (nn.Linear,), {"__module__": package})
    subject = f"a split backward pass of the tensor-parallel layer {package}.{name}"
    with refused(Unsupported, subject=subject, rule="it makes its weight gradient"):
        check_splittable([nn.Linear(2, 2), kind(2, 2)])
    check_splittable([type(name, (nn.Linear,), {"__module__": "mine"})(2, 2)])


@pytest.fixture
def tensor_parallel() -> Iterator[nn.Module]:
    """A linear layer whose weight and bias are DTensors, on one rank."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield parallelize_module(nn.Linear(4, 4), init_device_mesh("cpu", (1,)), ColwiseParallel())
    finally:
        distributed.destroy_process_group()


def test_weights_that_are_dtensors_are_refused(tensor_parallel: nn.Module) -> None:
    with refused(Unsupported, subject="a split backward pass of Linear.weight, a DTensor", rule="tensor-parallel"):
        check_splittable([nn.ReLU(), tensor_parallel])


def test_engine_refuses_a_layer_that_cannot_defer_before_the_first_batch() -> None:
    kind = type("RowParallelLinear", (nn.Linear,), {"__module__": "megatron.core.tensor_parallel.layers"})
    make = partial(Engine, [kind(2, 2)], loss=nn.MSELoss(), optimizer=SGD(0.1), microbatch=1)
    with refused(
        Unsupported,
        subject="a split backward pass of the tensor-parallel layer",
        rule="it makes its weight gradient within the backward pass",
    ):
        make(schedule=Staircase(split=True))
    make(schedule=Staircase())


# -- laws ------------------------------------------------------------------------------------------------------------


def owing_stage(index: int = 0) -> Stage:
    stage = Stage([nn.Linear(5, 3), nn.ReLU()])
    stage.forward(index, (torch.ones(4, 5),), sample=0, read=KEEP)
    stage.backward(index, (torch.ones(4, 3),), whole=False)
    return stage


def test_update_with_owed_gradients_is_illegal() -> None:
    stage = owing_stage(7)
    with pytest.raises(IllegalSchedule, match=r"an update while weight gradients are owed; .* legal: W7 first"):
        stage.check_paid()
    stage.weight_gradients(7)
    stage.check_paid()


@pytest.mark.parametrize("before", ["", "B", "I W"])
def test_op_w_needs_op_i(before: str) -> None:
    stage = Stage([nn.Linear(5, 3)])
    stage.forward(0, (torch.ones(4, 5),), sample=0, read=KEEP)
    for op in before.split():
        if op == "W":
            stage.weight_gradients(0)
        else:
            stage.backward(0, (torch.ones(4, 3),), whole=op == "B")
    with pytest.raises(IllegalSchedule, match="op W of microbatch 0, which owes no weight gradients"):
        stage.weight_gradients(0)


def test_stage_without_weights_owes_op_w_all_the_same() -> None:
    stage = Stage([nn.ReLU()])
    stage.forward(0, (torch.ones(2),), sample=0, read=KEEP)
    stage.backward(0, (torch.ones(2),), whole=False)
    assert stage.owed_bytes(0) == 0
    with pytest.raises(IllegalSchedule):
        stage.check_paid()
    stage.weight_gradients(0)


@pytest.mark.parametrize("which", ["input", "gradient"])
def test_in_place_change_before_op_w_is_rejected(which: str) -> None:
    stage = Stage([nn.Linear(5, 3)])
    x, gradient = torch.ones(4, 5), torch.ones(4, 3)
    stage.forward(0, (x,), sample=0, read=KEEP)
    stage.backward(0, (gradient,), whole=False)
    (x if which == "input" else gradient).mul_(2)
    with refused(
        InvalidRequest,
        subject="an in-place change of the input (4, 5) of a layer",
        rule="op W still reads both after op I",
    ):
        stage.weight_gradients(0)


def test_owed_bytes_are_inputs_and_output_gradients() -> None:
    """Three products of one input hold it once."""
    stage = Stage(
        [Call(lambda m, x: torch.cat([F.linear(x, w) for w in (m.a, m.b, m.c)]), a=(3, 5), b=(3, 5), c=(3, 5))]
    )
    stage.forward(0, (torch.ones(4, 5),), sample=0, read=KEEP)
    assert stage.owed_bytes(0) == 0
    stage.backward(0, (torch.ones(12, 3),), whole=False)
    # slices of one gradient share its storage
    assert stage.owed_bytes(0) == 4 * (4 * 5 + 12 * 3)
    stage.weight_gradients(0)
    assert stage.owed_bytes(0) == 0


def test_transformer_block_owes_what_the_paper_counts() -> None:
    """Zero Bubble Section 2: M_W of a layer is 32 b s h bytes in half precision, 16 numbers per entry of (b, s, h).

    The gradient of q, k and v, its input, and of each other linear layer both: h + 3h, h + h, h + 4h, 4h + h."""
    shape = Transformer(1, 16, 2, 6, 11)
    stage = Stage([gpt.layers(shape)[1]()])
    x = torch.randn(2, 6, 16)
    stage.forward(0, (x,), sample=0, read=KEEP)
    stage.backward(0, (torch.ones_like(x),), whole=False)
    assert stage.owed_bytes(0) == 16 * x.nbytes


def test_graph_is_freed_between_i_and_w() -> None:
    class Kept:
        """An object that a graph holds."""

    freed: list[int] = []

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, m.a).exp()
        if y.grad_fn is not None:
            kept = Kept()
            y.grad_fn.metadata["kept"] = kept
            weakref.finalize(kept, freed.append, 1)
        return F.linear(y, m.b)

    stage = Stage([Call(forward, a=(5, 5), b=(5, 5))])
    stage.forward(0, (torch.ones(4, 5),), sample=0, read=KEEP)
    assert not freed
    stage.backward(0, (torch.ones(4, 5),), whole=False)
    assert freed == [1]
    stage.weight_gradients(0)


# -- trainings -------------------------------------------------------------------------------------------------------


TIED = gpt_case("tied", "float32", dropout=0.3)
TRAININGS: dict[str, tuple[Case, dict[str, Any]]] = {
    "gpt, tied": (TIED, {}),
    "gpt, untied": (gpt_case("untied", "float64", tied=False), {}),
    "gpt, checkpointed": (TIED, {"activation_checkpointing": 1}),
    "gpt, bfloat16": (TIED, {"half": "bfloat16"}),
    "gpt, bfloat16, checkpointed": (TIED, {"half": "bfloat16", "activation_checkpointing": 3}),
    "gpt, pruned": (TIED, {"pruning": Pruning(FixedMask(random_mask(TIED, 0.8)), 0.8)}),
    "gpt, pruned, bfloat16": (TIED, {"half": "bfloat16", "pruning": Pruning(FixedMask(random_mask(TIED, 0.8)), 0.8)}),
    "mlp": (odd_case(torch.float32), {}),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_training_is_bit_equal(name: str) -> None:
    case, more = TRAININGS[name]
    results = []
    for schedule in (OneFOneB(), MessageDrivenSplit(cap=3, late=1)):  # W one microbatch after I, or at the update
        world = threads.LoopbackWorld(threads.Hub(1), 0)
        engine = engine_of(case, world, Grid(), optimizer=AdamW(0.01), schedule=schedule, **more)
        owed, weight_gradients = [], engine.state.stage.weight_gradients

        def pay(index: int, stage: Stage = engine.state.stage, run: Any = weight_gradients) -> None:
            owed.append(stage.owed_bytes(index))  # noqa: B023 - called in this iteration only
            run(index)

        engine.state.stage.weight_gradients = pay  # type: ignore[method-assign]
        losses = [engine.train_batch(case.batch(number, 4, 1)) for number in range(4)]
        assert len(owed) == (0 if isinstance(schedule, OneFOneB) else 16)
        assert all(owed)
        results.append([torch.tensor(losses), *(p.detach() for p in engine.state.stage.layers.parameters())])
    assert_same_bits(*results)
