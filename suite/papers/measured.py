"""Observers of small runs of the engine: messages and reductions of a rank, flops of a batch, reachable tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from suite.core.members import attributes
from suite.core.op import Kind, Op, feeds
from suite.core.protocols import Value
from suite.engine.engine import Engine
from suite.engine.memory_tracker import MemoryTracker

PASSES = (Kind.FORWARD, Kind.BACKWARD)


class Flops(TorchDispatchMode):
    """Dispatch mode that sums the flops of matrix products by torch's own formulas."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, as in MemoryTracker: nothing is compiled, and torch's compiler is not imported."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=output)
        return output


def before(owner: Any, method: str, act: Callable[..., object]) -> None:
    """Observe a part of an engine: from now on, each call of its method calls `act` with the same arguments first."""
    call = getattr(owner, method)

    def observed(*args: Any, **kwargs: Any) -> Any:
        act(*args, **kwargs)
        return call(*args, **kwargs)

    object.__setattr__(owner, method, observed)  # update rules are frozen


def after(owner: Any, method: str, act: Callable[..., object]) -> None:
    """Observe a part of an engine: each call of its method calls `act` with the result and the arguments at its end."""
    call = getattr(owner, method)

    def observed(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        act(result, *args, **kwargs)
        return result

    object.__setattr__(owner, method, observed)


def reductions(engine: Engine) -> list[int]:
    """Bytes of each sum over the replicas that this rank begins from now on."""
    sizes: list[int] = []

    def reduce(tensor: torch.Tensor, op: str = "sum") -> None:
        sizes.extend([tensor.nbytes] if op == "sum" else [])  # the flags of weights without a gradient are a maximum

    before(engine.state.update.data_parallel_group, "all_reduce", reduce)
    return sizes


@dataclass
class PassMessages:
    """Bytes of the messages of passes that a rank sends and receives."""

    sent: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, engine: Engine) -> PassMessages:
        """Messages of a rank from now on."""
        messages, transport = cls(), engine.state.comm.transport

        def send(op: Op, value: Value) -> None:
            if op.kind in PASSES and feeds(op, engine.place.stages) is not None:
                messages.sent.append(sum(tensor.nbytes for tensor in value))

        def arrive(arrival: tuple[Op, Value] | None, *_: Any) -> None:
            if arrival is not None and arrival[0].kind in PASSES:
                messages.received.append(sum(tensor.nbytes for tensor in arrival[1]))

        before(transport, "send", send)
        after(transport, "recv_any", arrive)
        return messages

    @property
    def all(self) -> list[int]:
        return [*self.sent, *self.received]


def tensors_of(item: Any, *, gradients: bool = False, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Yield every tensor reachable from `item` once, through containers and objects of the suite only.

    Args:
        item: Tensor, list, tuple, dictionary or object of the suite.
        gradients: Yield the gradient of a tensor after it.
        seen: Ids of objects to skip. The ids of all visited objects are added.
    """
    seen = set() if seen is None else seen
    if id(item) in seen:
        return
    seen.add(id(item))
    if isinstance(item, torch.Tensor):
        yield item
        if gradients and item.grad is not None:
            yield item.grad
        return
    members: Iterable[Any] = ()
    if isinstance(item, dict):
        members = item.values()
    elif isinstance(item, list | tuple):
        members = item
    elif type(item).__module__.startswith("suite."):
        members = attributes(item).values()
    for member in members:
        yield from tensors_of(member, gradients=gradients, seen=seen)


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Bytes by storage, so that views of one allocation count once."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.numel()}


def states_of(engine: Engine) -> dict[str, list[torch.Tensor]]:
    """Tensors of a rank's model states, by the names of the AxoNN and SAMO papers."""
    state = engine.state.model_states
    names = ("theta32", "grad32") if state.half is None else ("theta16", "grad16")
    tensors: dict[str, list[torch.Tensor]] = {name: [] for name in ("theta16", "grad16", "theta32", "grad32")}
    tensors[names[0]] += [parameter.data for parameter in state.parameters]
    tensors[names[1]] += [state.gradient]
    tensors["theta32"] += state.rule.weights
    tensors["grad32"] += [] if state.full_gradient is None else [state.full_gradient]
    return {**tensors, "optimizer_state": [*state.rule.moments.values()], "index": [*state.kept.values()]}


def step_bytes(engine: Engine) -> int:
    """Peak of the bytes that an optimizer step allocates and frees."""
    with MemoryTracker() as live:
        engine.state.model_states.step(engine.state.update.rule)
    return int(live.peak)


def train_plainly(
    network: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[..., torch.Tensor],
    batches: Iterable[Any],
) -> list[float]:
    """Loss of each batch in plain PyTorch."""
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        mean = loss(network(inputs), targets)
        mean.backward()
        optimizer.step()
        losses.append(float(mean.detach()))
    return losses


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one torch thread in the context, so that neither results nor times depend on the core count."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
