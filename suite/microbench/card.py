"""Speed of one device: products, copies and attention kernels. Operations on more than 2^31 entries are checked.

These measurements come first on a GPU. They show whether the device runs at the speed of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from suite.config.protocols import Sampler
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, RankError
from suite.core.protocols import ExecutorResult, Missing, Ready, Value, World
from suite.core.record import Metric, Source

BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
LIMIT = 2**31
Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Card:
    """Sizes of the measurements.

    Attributes:
        matrix: Rows of the square matrices.
        dtypes: Their types.
        copied: Bytes of each copy.
        attention: Batch, heads, sequence and numbers per head of each attention.
        rounds: Samples of each.
        beyond: Whether sums, norms and splits of LIMIT + 1 entries are checked.
    """

    matrix: int = 8192
    dtypes: Sequence[str] = ("bfloat16", "float16")
    copied: int = 2**30
    attention: Sequence[Sequence[int]] = field(default_factory=lambda: [(8, 16, 2048, 64), (8, 16, 2048, 128)])
    rounds: int = 5
    beyond: bool = True

    def reads(self, config: RunConfig) -> Sequence[str]:
        return ("grid.data",)

    def check(self, config: RunConfig) -> None:
        if config.grid.build().size != 1:
            raise InvalidRequest(f"{config.grid.build().size} ranks", rule="one rank measures its device", legal="1")

    def probe(self, config: RunConfig) -> Ready | Missing:
        return Ready()

    def bytes_per_rank(self, config: RunConfig) -> list[int]:
        return [max(6 * self.matrix**2, 3 * self.copied, self.beyond * 2 * LIMIT)]

    def on_rank(self, world: World, config: RunConfig) -> CardSampler:
        return CardSampler(self, world)

    def summarize(self, config: RunConfig, facts: Any, sweeps: Sequence[Sequence[Any]]) -> ExecutorResult:
        """Rates of the samples of all sweeps of the one rank."""
        samples: dict[str, tuple[str, list[float]]] = {}
        for (sweep,) in sweeps:
            for name, (unit, values) in sweep.items():
                samples.setdefault(name, (unit, []))[1].extend(values)
        metrics = {
            name: Metric(unit, "lower" if unit == "s" else "higher", tuple(values))
            for name, (unit, values) in samples.items()
        }
        return ExecutorResult(Source.MEASURED, metrics, notes=tuple(facts["notes"]))


class CardSampler(Sampler):
    """Sampler of a device. A batch is one sweep over all measurements; its content is ignored."""

    def __init__(self, plan: Card, world: World) -> None:
        from suite import accelerator

        self.plan, self.device, self.clock = plan, world.device, accelerator.Clock(world.device)
        self.swept: list[dict[str, tuple[str, list[float]]]] = []
        self.notes = [f"device: {', '.join(accelerator.names()) or self.device}"]
        if plan.beyond:
            self._check_beyond_limit()

    def train_batch(self, batch: Value | None = None) -> None:
        """Time one sweep."""
        self.swept.append({**self._products(), **self._copies(), **self._attention()})

    def samples(self) -> Mapping[str, object]:
        """Samples of every sweep since the last call, with notes."""
        swept, self.swept = self.swept, []
        return {"sweeps": swept, "notes": self.notes}

    def _seconds(self, call: Call) -> list[float]:
        """Seconds of each round of a call. An untimed call comes first."""
        call()
        self.clock.restart()
        marks = [self.clock.mark()]
        for _ in range(self.plan.rounds):
            call()
            marks.append(self.clock.mark())
        time_of = self.clock.times()
        times = [time_of(mark) for mark in marks]
        return [after - before for before, after in pairwise(times)]

    def _products(self) -> dict[str, tuple[str, list[float]]]:
        """Flop/s of square products of normal numbers, of which the clock of a GPU depends."""
        import torch

        size, rates = self.plan.matrix, {}
        for name in self.plan.dtypes:
            a, b = torch.randn(2, size, size, device=self.device, dtype=getattr(torch, name))
            times = self._seconds(lambda a=a, b=b: torch.mm(a, b))  # type: ignore[misc]
            rates[f"products, {name}"] = "flop/s", [2 * size**3 / seconds for seconds in times]
        return rates

    def _copies(self) -> dict[str, tuple[str, list[float]]]:
        """Bytes/s of copies on the device (read and written bytes), and from and to pinned memory of the host."""
        import torch

        from suite import accelerator

        size = self.plan.copied
        here, other = torch.zeros(2, size, dtype=torch.uint8, device=self.device)
        host = accelerator.host_zeros(size, torch.uint8, self.device)
        calls: dict[str, tuple[int, Call]] = {
            "copies": (2 * size, lambda: other.copy_(here)),
            "copies to the device": (size, lambda: here.copy_(host, non_blocking=True)),
            "copies to the host": (size, lambda: host.copy_(here, non_blocking=True)),
        }
        return {
            name: ("B/s", [moved / seconds for seconds in self._seconds(call)]) for name, (moved, call) in calls.items()
        }

    def _attention(self) -> dict[str, tuple[str, list[float]]]:
        """Seconds of a forward and backward pass of causal attention in the first dtype, by kernel and size.

        A kernel that refuses a size is left out, with a note.
        """
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        seconds = {}
        dtype = getattr(torch, self.plan.dtypes[0])
        for shape in self.plan.attention:
            q, k, v = (torch.randn(*shape, device=self.device, dtype=dtype, requires_grad=True) for _ in range(3))
            for backend in (None, *BACKENDS):
                name = f"attention {'x'.join(map(str, shape))}, {backend.lower() if backend else 'chosen by torch'}"

                def both(backend: str | None = backend, operands: Any = (q, k, v)) -> None:
                    with sdpa_kernel(getattr(SDPBackend, backend)) if backend else nullcontext():
                        output = scaled_dot_product_attention(operands[0], operands[1], operands[2], is_causal=True)
                    torch.autograd.grad(output, operands, torch.ones_like(output))

                try:
                    seconds[name] = "s", self._seconds(both)
                except RuntimeError as error:
                    note = f"{name}: {str(error).splitlines()[0]}"
                    self.notes += [] if note in self.notes else [note]
        return seconds

    def _check_beyond_limit(self) -> None:
        """Raise RankError where an operation on more than 2^31 entries misses the last one."""
        import torch

        many = torch.zeros(LIMIT + 1, dtype=torch.float16, device=self.device)
        many[-1] = 2
        *_, last = many.split(LIMIT)
        found = {
            "norm": float(torch.linalg.vector_norm(many, torch.inf)),
            "split": float(last[0]),
            "foreach": float(torch._foreach_add([many], 1.0)[0][-1]) - 1,
        }
        if wrong := [name for name, value in found.items() if value != 2]:
            raise RankError(f"{', '.join(wrong)} of {LIMIT + 1} entries: {found}, not 2")
