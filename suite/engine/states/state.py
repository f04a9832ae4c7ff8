"""Tensors behind memory.layout: one allocation per state, with exactly the layout's bytes, on the layout's device.

Passes compute with the layers' own tensors (the last bits of a product depend on their alignment). Gradients are views
into one flat tensor, so that a reduction is one message. In mixed precision the layers' own weights become `half`
copies of flat full-precision ones, which are taken before the cast: the rounded copy is never read back. A step works
on any slice of the flat order, and every slicing gives the same bits.

Of a pruned network (SAMO III) the flat order holds what is kept, the pruned weights first. Each gradient is
compressed as soon as its backward pass has made it, so that at most one is dense at a time."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import perf_counter

import torch
from torch import nn

from suite.core.errors import InvalidRequest
from suite.core.protocols import UpdateRule
from suite.core.trace import COMPRESS, EXPAND
from suite.engine.optim.optimizer import RuleState
from suite.engine.states.compress import compress, expand, mask
from suite.engine.states.flat_layout import LayoutOf, Order, check_buckets, copied, layout_of
from suite.memory.layout import ModelStateSpec

_HOOK = "compressing"  # what a pruned weight's hook is kept as


class ModelState:
    """The model states of one stage.

    Attributes:
        parameters: The trained weights.
        flat: Their order in flat states gradient: all that is kept of their gradients, flat, in the type that passes
            compute in; what replicas reduce rule: full-precision weights and moments of the whole stage, and how often
            they were stepped. In one precision the weights are the layers' own, of a pruned one with its zeros.
        half: The type that passes compute in, where it is not the weights' own.
        bucket: Entries that a step takes at a time.
        kept: The places that stay of each pruned weight, by its id.
        entries: Of the flat order.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        moments: Sequence[str],
        layout: LayoutOf,
        *,
        half: torch.dtype | None = None,
        bucket: int | None = None,
        kept: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        self.parameters = list(parameters)
        dtypes = {parameter.dtype for parameter in self.parameters}
        if len(dtypes) > 1:
            raise InvalidRequest(f"weights of {', '.join(sorted(map(str, dtypes)))}", rule="one dtype per stage")
        self.dtype, self.half = next(iter(dtypes), torch.float32), half
        self.device = self.parameters[0].device if self.parameters else torch.device("cpu")
        self.flat = Order(self.parameters, kept or {})
        self.entries, self.indexed = self.flat.entries, self.flat.indexed
        self.layout = layout_of(layout, self.flat, moments, self.dtype, half)
        self.bucket = min(bucket or self.entries, self.entries)
        self.copy = copied(self.layout, self.flat)
        self.shuttle = check_buckets(self.layout, self.flat, bucket, self.device)
        self._index()
        self._hold(tuple(moments))
        self.views = {id(p): self.part(p).view(p.shape) for p in self.parameters if id(p) not in self.pruned}
        for parameter in self.parameters:
            self._hook(parameter)
        self.attach()

    def _index(self) -> None:
        """One allocation for the indices of all pruned weights, and room for the expanded copy during a step."""
        self.pruned: dict[int, torch.Tensor] = {}  # the places of each, by its id
        self.copied: torch.Tensor | None = None  # while an update runs
        self.spent = {COMPRESS: 0.0, EXPAND: 0.0}  # seconds, on the host's clock
        if not self.indexed:
            return
        self.index = self._tensor(self.layout["index"])
        for key, places in self.flat.kept.items():
            self.pruned[key] = self.index[self.flat.at[key]].copy_(places)
        self.flat.kept = self.pruned  # what was drawn goes

    def _hold(self, moments: tuple[str, ...]) -> None:
        """Allocate what the layout holds for ever, and make the layers' weights what passes compute with."""
        self.gradient = self._tensor(self.layout["half_gradient" if self.half else "gradient"])
        self.widened: torch.Tensor | None = None  # the full-precision gradient, where all of it is held
        if self.half:
            master = self._tensor(self.layout["master"])
            for parameter in self.parameters:  # one at a time: what was drawn goes as its copies come
                index = self.pruned.get(id(parameter))
                flat = parameter.data.reshape(-1) if index is None else compress(parameter.data, index)
                self._of(master, parameter).copy_(flat)
                parameter.grad = None
                if index is None:
                    parameter.data = parameter.data.to(self.half).contiguous()
                else:
                    parameter.data = torch.zeros_like(parameter.data, dtype=self.half).contiguous()
                    expand(flat.to(self.half), index, parameter.data)
            full = [master]
        else:
            for parameter in self.parameters:
                parameter.data = parameter.data.contiguous()  # pieces of it are views
                if (index := self.pruned.get(id(parameter))) is not None:
                    mask(parameter.data, index)
            full = [parameter.data for parameter in self.flat.order]
        if self.half and self.layout["gradient"].life == "always":
            self.widened = self._tensor(self.layout["gradient"])
        self.rule = RuleState(full, {name: self._tensor(self.layout[name]) for name in moments})

    def _tensor(self, state: ModelStateSpec) -> torch.Tensor:
        host = state.home == "host"
        device = torch.device("cpu") if host else self.device
        pinned = host and self.device.type == "cuda"
        return torch.zeros(state.entries, dtype=getattr(torch, state.dtype), device=device, pin_memory=pinned)

    # -- gradients ---------------------------------------------------------------------------------------------------

    def _hook(self, parameter: nn.Parameter) -> None:
        """Gradients of a pruned weight come here, and no longer to states that held it before."""
        if (before := getattr(parameter, _HOOK, None)) is not None:
            before.remove()
            delattr(parameter, _HOOK)
        if id(parameter) in self.pruned:
            reference = weakref.ref(self)

            def compressed(parameter: torch.Tensor) -> None:
                if (state := reference()) is not None:
                    state._compress(parameter)

            parameter.grad = None
            setattr(parameter, _HOOK, parameter.register_post_accumulate_grad_hook(compressed))

    def _compress(self, parameter: torch.Tensor) -> None:
        """A backward pass has made a pruned weight's whole gradient: what is kept of it is added, the rest goes."""
        assert parameter.grad is not None
        begin = perf_counter()
        self._of(self.gradient, parameter).add_(compress(parameter.grad, self.pruned[id(parameter)]))
        parameter.grad = None
        self.spent[COMPRESS] += perf_counter() - begin

    def attach(self) -> None:
        """Let every whole weight's gradient be its view of the flat one; what user code has put elsewhere is copied
        in."""
        for parameter in self.parameters:
            if (view := self.views.get(id(parameter))) is None:
                continue
            if parameter.grad is not None and parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)
            parameter.grad = view

    def part(self, parameter: nn.Parameter) -> torch.Tensor:
        """The kept part of one weight's gradient, flat."""
        return self._of(self.gradient, parameter)

    def span(self, parameter: torch.Tensor) -> slice:
        """Where one weight lies in the flat order."""
        return self.flat.at[id(parameter)]

    def _of(self, flat: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        return flat[self.span(parameter)]

    def whole(self, flat: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
        """A weight's part of a flat state in the weight's shape, with zeros where it is pruned."""
        index, part = self.pruned.get(id(parameter)), self._of(flat, parameter)
        if index is None:
            return part.view(parameter.shape)
        dense = torch.zeros(parameter.shape, dtype=part.dtype, device=part.device)
        expand(part, index.to(part.device), dense)
        return dense

    def write(self, flat: torch.Tensor, parameter: nn.Parameter, dense: torch.Tensor) -> None:
        """Takes a weight's part of a flat state from `dense`, in the weight's shape."""
        index = self.pruned.get(id(parameter))
        self._of(flat, parameter).copy_(dense.reshape(-1) if index is None else compress(dense, index))

    def largest(self) -> float:
        """The largest |gradient| of this rank; infinite where one is not a number."""
        if not self.entries:
            return 0.0
        norm = float(torch.linalg.vector_norm(self.gradient, torch.inf))
        return torch.inf if math.isnan(norm) else norm

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
        if self.copy is not None:
            self.copied = torch.empty(self.copy.entries, dtype=getattr(torch, self.copy.dtype), device=self.device)
        try:
            yield from self._stepping(rule, factor)
        finally:
            self.copied = None

    def _stepping(self, rule: UpdateRule, factor: float) -> Iterator[slice]:
        if self.shuttle is None:
            for at in self.buckets():
                yield at
                moments = {name: moment[at] for name, moment in self.rule.moments.items()}
                self._step(rule, at, self.weights_at(at), moments, self._gradient(at, self.widened), factor)
            return
        moment_pieces = {**self.rule.moments, **({"master": self.rule.weights[0]} if self.half else {})}
        for at, fetched in self.shuttle.carry(moment_pieces, list(self.buckets())):
            yield at
            moments = {name: fetched[name] for name in self.rule.moments}
            weights = [fetched["master"]] if self.half else self.weights_at(at)
            widened = fetched.get("gradient")
            self._step(rule, at, weights, moments, self._gradient(at, None) if widened is None else widened, factor)

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
        elif at.start < self.indexed:
            begin = perf_counter()
            for parameter, part, where in self.flat.pieces(slice(at.start, min(at.stop, self.indexed))):
                expand(weights[0][where], self.pruned[id(parameter)][part], parameter.data)
            self.spent[EXPAND] += perf_counter() - begin

    def weights_at(self, at: slice) -> list[torch.Tensor]:
        """The full-precision weights in a piece: the flat ones, or the parts of the layers' own. Of pruned ones among
        those a compressed copy, the first of the list."""
        if self.half:
            return [self.rule.weights[0][at]]
        if not self.indexed and at == slice(0, self.entries):
            return self.rule.weights
        views: list[torch.Tensor] = []
        if at.start < self.indexed:
            assert self.copied is not None
            copy = self.copied[: min(at.stop, self.indexed) - at.start]
            begin = perf_counter()
            for parameter, part, where in self.flat.pieces(slice(at.start, min(at.stop, self.indexed))):
                index = self.pruned[id(parameter)][part]
                torch.index_select(parameter.data.view(-1), 0, index, out=copy[where])
            self.spent[EXPAND] += perf_counter() - begin
            views.append(copy)
        rest = slice(max(at.start, self.indexed), at.stop)
        return [*views, *(parameter.data.view(-1)[part] for parameter, part, _ in self.flat.pieces(rest))]

    def _round(self, at: slice, full: torch.Tensor) -> None:
        """Let the half copies in a piece be the full-precision weights, rounded."""
        for parameter, part, where in self.flat.pieces(at):
            if (index := self.pruned.get(id(parameter))) is None:
                parameter.data.view(-1)[part].copy_(full[where])
                continue
            begin = perf_counter()
            room = parameter.data.new_empty(part.stop - part.start) if self.copied is None else self.copied
            expand(room[: part.stop - part.start].copy_(full[where]), index[part], parameter.data)
            self.spent[EXPAND] += perf_counter() - begin

    def moved(self) -> None:
        """The layers' weights lie elsewhere from now on."""
        self.rule.weights = self.rule.weights if self.half else [p.data for p in self.flat.order]

    def finish(self, stepped: bool) -> None:
        """The batch is done: its gradient goes, and a step counts."""
        self.gradient.zero_()
        self.rule.updates += stepped

    # -- content of checkpoints and of the page ----------------------------------------------------------------------

    def export(self, parameter: nn.Parameter) -> Mapping[str, torch.Tensor]:
        """The full-precision weight and the moments of one parameter, in its shape: live, to read or to copy into.

        Of a pruned one what is kept, [kept], and the index; in one precision its weight is the layer's own, whole."""
        index = self.pruned.get(id(parameter))
        shape = parameter.shape if index is None else index.shape
        weight = self._of(self.rule.weights[0], parameter).view(shape) if self.half else parameter.data
        moments = {name: self._of(m, parameter).view(shape) for name, m in self.rule.moments.items()}
        return {"weight": weight, **moments, **({} if index is None else {"index": index})}

    def refresh(self) -> None:
        """After full-precision weights were written: let the half copies follow."""
        if self.half and self.entries:
            self._round(slice(0, self.entries), self.rule.weights[0])
            self.taken()  # of no batch

    def taken(self) -> dict[str, float]:
        """Seconds that compressing and expanding took since this was asked last, where they took any."""
        seconds_by_category = {category: seconds for category, seconds in self.spent.items() if seconds}
        self.spent = dict.fromkeys(self.spent, 0.0)
        return seconds_by_category

    def allocated(self, home: str = "device") -> dict[str, int]:
        """Bytes held for ever at `home`, by the layout's kinds."""
        kinds = {state.kind: 0 for state in self.layout if state.life == "always" and state.home == home}
        full = "host" if self.half and self.layout["master"].home == "host" else "device"
        entries = [("weights", "device", p.data) for p in self.parameters] + [("gradients", "device", self.gradient)]
        entries += [("weights", full, self.rule.weights[0])] if self.half else []
        entries += [("gradients", "device", self.widened)] if self.widened is not None else []
        entries += [("indices", "device", self.index)] if self.pruned else []
        entries += [("moments", self.layout[name].home, moment) for name, moment in self.rule.moments.items()]
        for kind, where, tensor in entries:
            if where == home:
                kinds[kind] = kinds.get(kind, 0) + tensor.numel() * tensor.element_size()
        return kinds
