"""Decides the tensors behind memory.layout: one allocation per state, of exactly the layout's bytes, where it says.

What passes compute with stays the layers' own tensors (a product's last bits depend on their alignment). Gradients are
views into one flat tensor, so that a reduction is one message. In mixed precision the layers' own weights become `half`
copies of flat full-precision ones, which are taken before the cast: the rounded copy is never read back. A step works
on any slice of the flat order, and every slicing gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from suite.core.errors import Refused
from suite.core.protocols import UpdateRule
from suite.engine.offload import Shuttle
from suite.engine.optimizer import RuleState
from suite.memory.layout import Layout, State

LayoutOf = Callable[..., Layout]


class ModelState:
    """The model states of one stage.

    parameters: the trained weights, in the flat order; views: their gradients, in the type that passes compute in
    gradient: all of them, flat; what replicas reduce
    rule: full-precision weights and moments of the whole stage, and how often they were stepped
    half: the type that passes compute in, where it is not the weights' own; bucket: entries that a step takes at a time
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        moments: Sequence[str],
        layout: LayoutOf,
        *,
        half: torch.dtype | None = None,
        bucket: int | None = None,
    ) -> None:
        self.parameters = list(parameters)
        dtypes = {parameter.dtype for parameter in self.parameters}
        if len(dtypes) > 1:
            raise Refused(f"weights of {', '.join(sorted(map(str, dtypes)))}", rule="one dtype per stage")
        if bucket is not None and bucket < 1:
            raise Refused(f"update.bucket={bucket}", rule="at least 1 entry", legal="update.bucket=4_000_000")
        self.dtype, self.half = dtypes.pop() if dtypes else torch.float32, half
        self.entries = sum(parameter.numel() for parameter in self.parameters)
        name = str(self.dtype).removeprefix("torch.")
        copies = str(half).removeprefix("torch.") if half else None
        self.layout = layout(entries=self.entries, moments=tuple(moments), dtype=name, half=copies)
        self.device = self.parameters[0].device if self.parameters else torch.device("cpu")
        self.bucket = min(bucket or self.entries, self.entries)
        self.at: dict[int, int] = {}
        start = 0
        for parameter in self.parameters:
            self.at[id(parameter)] = start
            start += parameter.numel()
        self._hold(tuple(moments))
        self.views = [self.part(p).view(p.shape) for p in self.parameters]
        self.attach()

    def _hold(self, moments: tuple[str, ...]) -> None:
        """Allocate what the layout holds for ever, and make the layers' weights what passes compute with."""
        self.gradient = self._tensor(self.layout["half_gradient" if self.half else "gradient"])
        self.widened: torch.Tensor | None = None  # the full-precision gradient, where all of it is held
        if self.half:
            master = self._tensor(self.layout["master"])
            for parameter in self.parameters:  # one at a time: what was drawn goes as its copies come
                self._of(master, parameter).copy_(parameter.data.reshape(-1))
                parameter.grad = None
                parameter.data = parameter.data.to(self.half)
            full = [master]
        else:
            full = [parameter.data for parameter in self.parameters]
        if self.half and self.layout["gradient"].life == "always":
            self.widened = self._tensor(self.layout["gradient"])
        self.rule = RuleState(full, {name: self._tensor(self.layout[name]) for name in moments})
        fetched = [state for state in self.layout if state.life == "bucket"]
        self.shuttle = Shuttle(fetched, self.bucket, self.device) if fetched else None

    def _tensor(self, state: State) -> torch.Tensor:
        host = state.home == "host"
        device = torch.device("cpu") if host else self.device
        pinned = host and self.device.type == "cuda"
        return torch.zeros(state.entries, dtype=getattr(torch, state.dtype), device=device, pin_memory=pinned)

    # -- gradients ---------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Let every weight's gradient be its view of the flat one; what user code has put elsewhere is copied in."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is not None and parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)
            parameter.grad = view

    def attached(self) -> bool:
        """Whether nobody has replaced a gradient (zero_grad sets None, which would lose it silently)."""
        return all(p.grad is view for p, view in zip(self.parameters, self.views, strict=True))

    def part(self, parameter: nn.Parameter) -> torch.Tensor:
        """The flat gradient of one weight."""
        return self._of(self.gradient, parameter)

    def span(self, parameter: nn.Parameter) -> slice:
        """Where one weight lies in the flat order."""
        start = self.at[id(parameter)]
        return slice(start, start + parameter.numel())

    def _of(self, flat: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
        return flat[self.span(parameter)]

    def largest(self) -> float:
        """The largest |gradient| of this rank; infinite where one is not a number."""
        if not self.entries:
            return 0.0
        found = float(torch.linalg.vector_norm(self.gradient, torch.inf))
        return torch.inf if math.isnan(found) else found

    # -- the step ----------------------------------------------------------------------------------------------------

    def buckets(self) -> Iterator[slice]:
        """The flat order in pieces that are stepped at a time; the last may be shorter."""
        for start in range(0, self.entries, max(1, self.bucket)):
            yield slice(start, min(self.entries, start + self.bucket))

    def step(self, rule: UpdateRule, factor: float = 1.0) -> None:
        """Step all weights by their gradients times `factor`, which it uses up. Counts nothing."""
        for _ in self.stepping(rule, factor):
            pass

    def stepping(self, rule: UpdateRule, factor: float = 1.0) -> Iterator[slice]:
        """Step the weights bucket by bucket by their gradients times `factor`, which it uses up. Yields each bucket
        when its gradient is wanted, and steps it when asked for the next. Counts nothing."""
        if self.shuttle is None:
            for at in self.buckets():
                yield at
                moments = {name: moment[at] for name, moment in self.rule.moments.items()}
                self._step(rule, at, self._weights(at), moments, self._gradient(at, self.widened), factor)
            return
        kept = {**self.rule.moments, **({"master": self.rule.weights[0]} if self.half else {})}
        for at, fetched in self.shuttle.carry(kept, list(self.buckets())):
            yield at
            moments = {name: fetched[name] for name in self.rule.moments}
            own = [fetched["master"]] if self.half else self._weights(at)
            widened = fetched.get("gradient")
            self._step(rule, at, own, moments, self._gradient(at, None) if widened is None else widened, factor)

    def _gradient(self, at: slice, widened: torch.Tensor | None) -> torch.Tensor:
        return self.gradient[at] if widened is None else widened[at]

    @torch.no_grad()
    def _step(
        self,
        rule: UpdateRule,
        at: slice,
        weights: list[torch.Tensor],
        moments: dict[str, torch.Tensor],
        gradient: torch.Tensor,
        factor: float,
    ) -> None:
        if self.half:
            gradient.copy_(self.gradient[at])
        if factor != 1.0:
            gradient.mul_(factor)
        rule.step(RuleState(weights, moments, self.rule.updates), gradient)
        if self.half:
            self._round(at, weights[0])

    def _weights(self, at: slice) -> list[torch.Tensor]:
        """The full-precision weights in a piece: the flat ones, or the parts of the layers' own."""
        if self.half:
            return [self.rule.weights[0][at]]
        if at == slice(0, self.entries):
            return self.rule.weights
        return [own for own, _ in self._pieces(at)]

    def _pieces(self, at: slice) -> Iterator[tuple[torch.Tensor, slice]]:
        """The parts of the layers' own weights that a piece covers, flat, and where in the piece they lie."""
        for parameter in self.parameters:
            own = self.span(parameter)
            first, last = max(own.start, at.start), min(own.stop, at.stop)
            if first < last:
                flat = parameter.data.view(-1)[first - own.start : last - own.start]
                yield flat, slice(first - at.start, last - at.start)

    def _round(self, at: slice, full: torch.Tensor) -> None:
        """Let the half copies in a piece be the full-precision weights, rounded."""
        for own, where in self._pieces(at):
            own.copy_(full[where])

    def finish(self, stepped: bool) -> None:
        """The batch is done: its gradient goes, and a step counts."""
        self.gradient.zero_()
        self.rule.updates += stepped

    # -- what a checkpoint keeps, and what a page shows ----------------------------------------------------------------

    def export(self, parameter: nn.Parameter) -> Mapping[str, torch.Tensor]:
        """The full-precision weight and the moments of one parameter, in its shape: live, to read or to copy into."""
        if self.half:
            weight = self._of(self.rule.weights[0], parameter).view(parameter.shape)
        else:
            weight = parameter.data
        return {
            "weight": weight,
            **{name: self._of(m, parameter).view(parameter.shape) for name, m in self.rule.moments.items()},
        }

    def refresh(self) -> None:
        """After full-precision weights were written: let the half copies follow."""
        if self.half and self.entries:
            self._round(slice(0, self.entries), self.rule.weights[0])

    def allocated(self, home: str = "device") -> dict[str, int]:
        """Bytes held for ever at `home`, by the layout's kinds."""
        kinds = {state.kind: 0 for state in self.layout if state.life == "always" and state.home == home}
        full = "host" if self.half and self.layout["master"].home == "host" else "device"
        held = [("weights", "device", p.data) for p in self.parameters] + [("gradients", "device", self.gradient)]
        held += [("weights", full, self.rule.weights[0])] if self.half else []
        held += [("gradients", "device", self.widened)] if self.widened is not None else []
        held += [("moments", self.layout[name].home, moment) for name, moment in self.rule.moments.items()]
        for kind, where, tensor in held:
            if where == home:
                kinds[kind] = kinds.get(kind, 0) + tensor.numel() * tensor.element_size()
        return kinds
