"""Split backward pass: ops I and W give the bits of a whole backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from suite.core.errors import InvalidRequest, Unsupported
from suite.core.protocols import Read, Value
from suite.engine import split_backward
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD
from suite.engine.random_state import drawing
from suite.engine.split_backward import check_splittable
from suite.engine.stage import Stage
from suite.models import gpt
from suite.schedule.staircase import Staircase
from suite.workload import Transformer
from tests.support.drawn import drawn
from tests.support.refusals import refused

KEEP = Read(0, 0, "keep")
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def gradients_of(stage: Stage) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in stage.layers.parameters()]


def assert_same_bits(left: Sequence[torch.Tensor | None], right: Sequence[torch.Tensor | None]) -> None:
    for number, (a, b) in enumerate(zip(left, right, strict=True)):
        assert (a is None) == (b is None), number
        assert a is None or b is None or torch.equal(a, b), number


def run_ops(stage: Stage, ops: str, gradient: Value = ()) -> list[torch.Tensor]:
    """Gradients of the inputs from the ops I and B of `ops`, such as "I0 W0"."""
    into: list[torch.Tensor] = []
    for kind, index in ops.split():
        if kind == "W":
            stage.owed_gradients.pay(int(index))
        else:
            into += stage.backward(int(index), gradient, whole=kind == "B")
    return into


def owed_bytes(stage: Stage) -> int:
    """Bytes of the inputs and output gradients that the stage holds for ops W."""
    products = (each for passes in stage.owed_gradients.products.values() for of_pass in passes for each in of_pass)
    storages = (tensor.untyped_storage() for product in products for tensor in product.held())
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


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


def _transposed_once(m: Any, x: torch.Tensor) -> torch.Tensor:
    transposed = m.a.t()
    output: torch.Tensor = (x @ transposed).tanh() @ transposed
    return output


def _nested(m: Any, x: torch.Tensor, *, reentrant: bool) -> torch.Tensor:
    output: torch.Tensor = checkpoint(partial(_linear, m), x, use_reentrant=reentrant)
    return output


def _linear(m: Any, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, m.a, m.b)


def _mixed(m: Any, x: torch.Tensor) -> torch.Tensor:
    """`b` is shared by a product that is deferred and by one whose weight is used otherwise too."""
    return F.linear(_linear(m, x).tanh(), m.c, m.b) * m.a.sum()


def _channels_last(m: Any, x: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x.to(memory_format=torch.channels_last), m.a, m.b)


ROWS, TALL = (4, 5), (2, 4, 5)
ONE = {"a": (5, 5)}
SQUARE = {**ONE, "b": (5,)}
TWO = {**ONE, "c": (5, 5)}
THREE = {**SQUARE, "c": (5, 5)}
FILTER_1 = {"a": (3, 3, 3), "b": (3,)}
FILTER_2 = {"a": (4, 3, 3, 3), "b": (4,)}
IMAGE = (2, 3, 7, 7)
# by name: the module's function, its parameters, the input's shape, and the parameters that op W gives a gradient
CALLS: dict[
    str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], Mapping[str, Sequence[int]], Sequence[int], str]
] = {
    "linear": (_linear, SQUARE, ROWS, "ab"),
    "transposed input": (lambda m, x: _linear(m, x.transpose(0, 1)), SQUARE, (4, 2, 5), "a"),
    "strided input": (lambda m, x: _linear(m, x[..., ::2]), SQUARE, (4, 10), "ab"),
    "in place after": (lambda m, x: _linear(m, x).relu_(), SQUARE, TALL, "ab"),
    "matmul": (lambda m, x: x @ m.a, {"a": (5, 3)}, ROWS, "a"),
    "addmm, matrix": (lambda m, x: torch.addmm(m.b, x, m.a), {"a": (5, 5), "b": ROWS}, ROWS, "ab"),
    "addmm, alpha": (lambda m, x: torch.addmm(m.b, x, m.a, alpha=3), SQUARE, ROWS, ""),
    "used twice": (lambda m, x: _linear(m, _linear(m, x).tanh()), SQUARE, ROWS, "ab"),
    "transposed once, used twice": (_transposed_once, ONE, ROWS, "a"),
    "used both ways": (lambda m, x: (x @ m.a).tanh() @ m.a.t(), ONE, ROWS, "a"),
    "used otherwise too": (lambda m, x: _linear(m, x * m.a[0]), SQUARE, ROWS, ""),
    "shared by a mixed product": (_mixed, THREE, ROWS, ""),
    "scaled weight": (lambda m, x: F.linear(x, m.a * 2, m.b), SQUARE, ROWS, ""),
    "input without gradient": (lambda m, x: x + _linear(m, x.detach()), SQUARE, ROWS, ""),
    "input of weights": (lambda m, x: x * F.linear(F.linear(x.detach(), m.a), m.c).mean(), TWO, ROWS, "c"),
    "unused output": (lambda m, x: (_linear(m, x), x)[1], SQUARE, ROWS, ""),
    "beside a reentrant checkpoint": (lambda m, x: _nested(m, F.linear(x, m.c), reentrant=True), THREE, ROWS, ""),
    "beside a checkpoint": (lambda m, x: _nested(m, F.linear(x, m.c), reentrant=False), THREE, ROWS, "c"),
    "conv1d, twice": (
        lambda m, x: F.conv1d(F.conv1d(x, m.a, m.b, padding=1).tanh(), m.a, m.b, padding=1),
        FILTER_1,
        (2, 3, 7),
        "ab",
    ),
    "conv2d, no bias": (lambda m, x: F.conv2d(x, m.a, stride=2), {"a": (4, 3, 3, 3)}, IMAGE, "a"),
    "conv2d, channels last": (_channels_last, FILTER_2, IMAGE, "ab"),
    "transposed conv2d": (
        lambda m, x: F.conv_transpose2d(x, m.a, m.b, stride=2),
        {"a": (3, 4, 3, 3), "b": (4,)},
        (2, 3, 5, 5),
        "ab",
    ),
}


def split_and_whole(
    make: Callable[[], nn.Module], shape: Sequence[int] = ROWS, dtype: torch.dtype = torch.float32
) -> str:
    """Assert the same bits after B and after I and W. Returns the names of the weights with a gradient from W.

    The sum of several passes depends on their order."""
    results, late = [], ""
    for ops in ("B0 B1 B2 B3", "I0 I1 I2 I3 W0 W1 W2 W3"):
        with drawing(1, 0, 0):
            stage = Stage([make().to(dtype)])
        for number in range(4):
            x = torch.randn(*shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
            (y,) = stage.forward(number, (x.to(dtype),), sample=0, read=KEEP)
        gradient = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape).to(dtype)
        into = run_ops(stage, ops[:11], (gradient,))
        before = [None if grad is None else grad.clone() for grad in gradients_of(stage)]
        run_ops(stage, ops[11:])
        changed = [
            name.rpartition(".")[2]
            for (name, weight), old in zip(stage.layers.named_parameters(), before, strict=True)
            if weight.grad is not None and (old is None or not torch.equal(old, weight.grad))
        ]
        late = "".join(changed)
        results.append([*into, *gradients_of(stage)])
    assert_same_bits(*results)
    return late


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", drawn(DTYPES, n=1), ids=str)
def test_uses_of_weights(name: str, dtype: torch.dtype) -> None:
    function, parameters, shape, deferred = CALLS[name]
    assert split_and_whole(partial(Call, function, **parameters), shape, dtype) == deferred


@pytest.mark.parametrize("name", ["linear", "used twice", "used both ways", "conv1d, twice"])
def test_large_gradients_are_added_one_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of autograd for each weight, whose two terms it adds first."""
    monkeypatch.setattr(split_backward, "_CALL_BYTES", 1)
    function, parameters, shape, deferred = CALLS[name]
    assert split_and_whole(partial(Call, function, **parameters), shape) == deferred


@pytest.mark.parametrize("name", ["linear", "conv2d, channels last"])
def test_frozen_weights_stay_without_gradient(name: str) -> None:
    function, parameters, shape, _ = CALLS[name]
    for frozen, deferred in (("a", ""), ("b", "a"), ("ab", "")):

        def make(frozen: str = frozen) -> nn.Module:
            module = Call(function, **parameters)
            for weight in frozen:
                module.get_parameter(weight).requires_grad_(False)
            return module

        assert split_and_whole(make, shape) == deferred, frozen


def _hooked_output(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = _linear(m, x)
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 3)
    return y


class Alternating(nn.Module):
    """A weight that is used by linear layers alone in three passes, and otherwise too in the fourth."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.linear, self.calls, self.reentrant = nn.Linear(5, 5), 0, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls % 4:
            return self.linear(x)
        return checkpoint(self.linear, x, use_reentrant=True) if self.reentrant else self.linear(x * self.linear.bias)


MODULES: dict[str, tuple[Callable[[], nn.Module], Sequence[int], str]] = {
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 5)), ROWS, ""),
    "hooks on outputs": (partial(Call, _hooked_output, **SQUARE), ROWS, "ab"),
    # op I adds to a gradient that an earlier pass owes, which is paid first
    "alternating": (partial(Alternating, reentrant=False), ROWS, ""),
    "alternating, reentrant": (partial(Alternating, reentrant=True), ROWS, ""),
}


@pytest.mark.slow("backward passes are compiled")
@pytest.mark.parametrize("name", MODULES)
def test_modules_of_torch_and_of_users(name: str) -> None:
    make, shape, deferred = MODULES[name]
    assert split_and_whole(make, shape) == deferred


# -- hooks of users --------------------------------------------------------------------------------------------------


def test_hooks_on_weights_run_once_on_whole_gradients() -> None:
    """Tensor hooks, post-accumulate hooks and hooks on a weight's transpose see what they see in op B."""
    seen: list[Any] = []

    def double(gradient: torch.Tensor) -> torch.Tensor:
        seen.append(gradient.tolist())
        return gradient * 2

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        transposed = m.a.t()
        if transposed.requires_grad:
            transposed.register_hook(double)
        return _linear(m, x) @ transposed

    def make() -> nn.Module:
        module = Call(forward, **SQUARE)
        module.a.register_hook(double)
        module.b.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.tolist()))
        return module

    split_and_whole(make)
    whole, split = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert sorted(whole, key=str) == sorted(split, key=str)
    assert len(whole) == 4 * 3  # in each pass by the hooks on the weight, its transpose and the bias


# -- refusals --------------------------------------------------------------------------------------------------------

MEGATRON = "megatron.core.tensor_parallel.layers"


def layer_named(name: str, package: str) -> nn.Module:
    kind: type[nn.Linear] = type(name, (nn.Linear,), {"__module__": package})
    return kind(2, 2)


def test_modules_that_cannot_defer_are_refused() -> None:
    from torch.distributed import fsdp

    distributed = nn.Linear(2, 2)
    distributed.weight = type("DTensor", (nn.Parameter,), {"__module__": "torch.distributed.tensor"})(torch.zeros(2, 2))
    modules = [
        *(
            layer_named(kind.__name__, kind.__module__)
            for kind in (nn.parallel.DistributedDataParallel, fsdp.FSDPModule)
        ),
        layer_named("RowParallelLinear", MEGATRON),
        distributed,
    ]
    make = partial(Engine, loss=nn.MSELoss(), optimizer=SGD(0.1), microbatch=1)
    for module in modules:
        with refused(Unsupported, subject=f"a split backward pass of {type(module).__name__}"):
            make([module], schedule=Staircase(split=True))
        make([module], schedule=Staircase())
    check_splittable([layer_named("RowParallelLinear", "mine")])


# -- laws ------------------------------------------------------------------------------------------------------------


def owing_stage(*layers: nn.Module, x: torch.Tensor | None = None, outputs: tuple[int, ...] = (4, 3)) -> Stage:
    """A stage after op I of microbatch 0."""
    stage = Stage(layers or [nn.Linear(5, 3)])
    stage.forward(0, (torch.ones(4, 5) if x is None else x,), sample=0, read=KEEP)
    assert owed_bytes(stage) == 0
    stage.backward(0, (torch.ones(outputs),), whole=False)
    return stage


@pytest.mark.parametrize("which", [0, 1])
def test_in_place_change_before_op_w_is_rejected(which: int) -> None:
    stage = Stage([nn.Linear(5, 3)])
    x, gradient = torch.ones(4, 5), torch.ones(4, 3)
    stage.forward(0, (x,), sample=0, read=KEEP)
    stage.backward(0, (gradient,), whole=False)
    (x, gradient)[which].mul_(2)
    with refused(InvalidRequest, subject="an in-place change of the input (4, 5) of a layer"):
        stage.owed_gradients.pay(0)


def test_transformer_block_owes_what_the_paper_counts() -> None:
    """Zero Bubble Section 2: M_W of a layer is 32 b s h bytes in half precision, 16 numbers per entry of (b, s, h).

    The gradient of q, k and v, its input, and of each other linear layer both: h + 3h, h + h, h + 4h, 4h + h."""
    x, block = torch.randn(2, 6, 16), gpt.layers(Transformer(1, 16, 2, 6, 11))[1]()
    assert owed_bytes(owing_stage(block, x=x, outputs=(2, 6, 16))) == 16 * x.nbytes


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

    stage = owing_stage(Call(forward, a=(5, 5), b=(5, 5)), outputs=(4, 5))
    assert freed == [1]
    stage.owed_gradients.pay(0)
