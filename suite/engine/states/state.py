"""Model states of a stage: one allocation per state of memory.layout, with its exact bytes, on its device.

Passes compute with the layers' own tensors, because the last bits of a product depend on their alignment. Gradients are
views of one flat tensor, so that a reduction is one message. In mixed precision the layers' weights become copies in
`half` of flat full-precision weights; rounded copies are never read back. An optimizer step works on any slice of the
flat order, and every slicing gives the same bits.

For a pruned network (SAMO III) the flat order holds the kept entries, pruned weights first. Each gradient is compressed
as soon as the backward pass has computed it, so at most one is dense at a time.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from suite import accelerator
from suite.core.errors import InvalidRequest
from suite.core.protocols import UpdateRule
from suite.core.trace import COMPRESS, EXPAND
from suite.engine.optim.optimizer import RuleState
from suite.engine.states.compress import compress, expand, mask
from suite.engine.states.flat_layout import FlatLayout, LayoutFactory, plan_states
from suite.memory.layout import ModelStateSpec

FusedStep = Callable[[UpdateRule, RuleState, torch.Tensor, float], None]  # see engine.optim.fused.step
_HOOK = "_compression_hook"  # attribute of a pruned weight


class ModelState:
    """Model states of one stage.

    Attributes:
        parameters: Trained weights.
        flat: Flat order of the weights.
        gradient: Flat gradients of all kept entries, in the dtype of passes; replicas reduce this tensor.
        rule: Full-precision weights and moments of the stage, and the number of updates. In one precision the weights
            are the layers' own; a pruned one includes its zeros.
        full_gradient: Gradient in full precision, if the layout holds all of it.
        half: Dtype of passes in mixed precision; None in one precision.
        bucket_numel: Entries per optimizer step.
        kept: Kept indices of each pruned weight, by the id of the weight.
        entries: Entries of the flat order; the first `indexed` belong to pruned weights.
        fused: Step of one kernel, which reads the half-precision gradient; None for a step of separate operations.
        views: Gradient view of each weight that is not pruned, by the id of the weight.
        pieces: Category, and marks of the begin and the end, of each compression and expansion.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        moments: Sequence[str],
        layout: LayoutFactory,
        *,
        half: torch.dtype | None = None,
        bucket_numel: int | None = None,
        kept: Mapping[int, torch.Tensor] | None = None,
        clock: accelerator.Clock | None = None,
        fused: FusedStep | None = None,
    ) -> None:
        self.parameters = list(parameters)
        dtypes = {parameter.dtype for parameter in self.parameters}
        if len(dtypes) > 1:
            raise InvalidRequest(
                f"weights in {', '.join(sorted(map(str, dtypes)))}", rule="all weights of a stage have one dtype"
            )
        self.dtype, self.half = next(iter(dtypes), torch.float32), half
        self.device = self.parameters[0].device if self.parameters else torch.device("cpu")
        self.flat = FlatLayout(self.parameters, kept or {})
        self.entries, self.indexed = self.flat.entries, self.flat.indexed
        self.bucket_numel = self.flat.bucket_numel(bucket_numel)
        self.layout, self.offloader = plan_states(
            layout, self.flat, moments, self.dtype, half, self.bucket_numel, self.device
        )
        self.kept: dict[int, torch.Tensor] = {}
        self.permanent: list[tuple[ModelStateSpec, torch.Tensor]] = []
        self.fused = fused
        self.mark = clock.mark if clock else accelerator.host_time
        self.pieces: list[tuple[str, float, float]] = []
        self._allocate_indices()
        self._allocate_states(tuple(moments))
        # .data gives each view a version of its own, which tells whether a backward pass has added to it
        self.views = {
            id(p): self.kept_gradient(p).view(p.shape).data for p in self.parameters if id(p) not in self.kept
        }
        self.written: tuple[int, list[int]] = self._versions()
        for parameter in self.parameters:
            self._set_compression_hook(parameter)
        self.attach_gradients()

    def _allocate_indices(self) -> None:
        """Copy the indices of all pruned weights to one allocation."""
        if not self.indexed:
            return
        index = self._allocate("index")
        for key, indices in self.flat.kept.items():
            self.kept[key] = index[self.flat.spans[key]].copy_(indices)
        self.flat.kept = self.kept  # frees the indices that were passed in

    def _allocate_states(self, moments: tuple[str, ...]) -> None:
        """Allocate the permanent states, and give the layers the weights that passes compute with."""
        self.gradient = self._allocate("half_gradient" if self.half else "gradient")
        self.full_gradient: torch.Tensor | None = None
        if self.half:
            master = self._allocate("master")
            for parameter in self.parameters:  # one at a time, which frees each weight before the next is copied
                index = self.kept.get(id(parameter))
                flat = parameter.data.reshape(-1) if index is None else compress(parameter.data, index)
                self._part(master, parameter).copy_(flat)
                parameter.grad = None
                if index is None:
                    parameter.data = parameter.data.to(self.half).contiguous()
                else:
                    parameter.data = torch.zeros_like(parameter.data, dtype=self.half).contiguous()
                    expand(flat.to(self.half), index, parameter.data)
            full = [master]
        else:
            for parameter in self.parameters:
                parameter.data = parameter.data.contiguous()  # buckets are views of it
                if (index := self.kept.get(id(parameter))) is not None:
                    mask(parameter.data, index)
            full = [parameter.data for parameter in self.flat.order]
        if self.half and self.layout["gradient"].life == "always":
            self.full_gradient = self._allocate("gradient")
        self.rule = RuleState(full, {name: self._allocate(name) for name in moments})

    def _allocate(self, name: str) -> torch.Tensor:
        state = self.layout[name]
        zeros = accelerator.host_zeros if state.home == "host" else torch.zeros
        tensor = zeros(state.entries, dtype=getattr(torch, state.dtype), device=self.device)
        self.permanent.append((state, tensor))
        return tensor

    # -- gradients ---------------------------------------------------------------------------------------------------

    def _set_compression_hook(self, parameter: nn.Parameter) -> None:
        """Compress every gradient of a pruned weight. The hook of earlier model states is removed."""
        if (old_hook := getattr(parameter, _HOOK, None)) is not None:
            old_hook.remove()
            delattr(parameter, _HOOK)
        if id(parameter) in self.kept:
            reference = weakref.ref(self)

            def compress_gradient(parameter: torch.Tensor) -> None:
                if (state := reference()) is not None:
                    state._compress_gradient(parameter)

            parameter.grad = None
            setattr(parameter, _HOOK, parameter.register_post_accumulate_grad_hook(compress_gradient))

    def _compress_gradient(self, parameter: torch.Tensor) -> None:
        """Add the kept entries of a pruned weight's dense gradient to the flat gradient, and free the dense one."""
        assert parameter.grad is not None
        begin = self.mark()
        self.kept_gradient(parameter).add_(compress(parameter.grad, self.kept[id(parameter)]))
        parameter.grad = None
        self.pieces.append((COMPRESS, begin, self.mark()))

    def _versions(self) -> tuple[int, list[int]]:
        return self.gradient._version, [view._version for view in self.views.values()]

    def begin(self) -> None:
        """Clear what user code has added to gradients since the last batch, as zero_grad() does in a plain loop."""
        if self._versions() != self.written:
            self.gradient.zero_()
            self.written = self._versions()

    def without_gradient(self) -> list[int]:
        """Places in `views` of the weights to which no backward pass has added since `begin`."""
        pairs = zip(self.written[1], self._versions()[1], strict=True)
        return [place for place, (before, now) in enumerate(pairs) if before == now]

    def attach_gradients(self) -> None:
        """Make the gradient of every unpruned weight its view of the flat gradient.

        A gradient that user code has stored elsewhere is copied."""
        for parameter in self.parameters:
            if (view := self.views.get(id(parameter))) is None:
                continue
            if parameter.grad is not None and parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)
            parameter.grad = view

    def kept_gradient(self, parameter: torch.Tensor) -> torch.Tensor:
        """Kept entries of one weight's gradient, flat."""
        return self._part(self.gradient, parameter)

    def span(self, parameter: torch.Tensor) -> slice:
        """Slice of one weight in the flat order."""
        return self.flat.spans[id(parameter)]

    def _part(self, flat: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        return flat[self.span(parameter)]

    def dense(self, flat: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
        """A weight's part of a flat state in the weight's shape, with zeros at pruned entries."""
        index, part = self.kept.get(id(parameter)), self._part(flat, parameter)
        if index is None:
            return part.view(parameter.shape)
        dense = torch.zeros(parameter.shape, dtype=part.dtype, device=part.device)
        expand(part, index.to(part.device), dense)
        return dense

    def write(self, flat: torch.Tensor, parameter: nn.Parameter, dense: torch.Tensor) -> None:
        """Copy `dense`, in the weight's shape, to the weight's part of a flat state."""
        index = self.kept.get(id(parameter))
        self._part(flat, parameter).copy_(dense.reshape(-1) if index is None else compress(dense, index))

    def max_gradient(self) -> float:
        """The largest |gradient| of this rank; infinity if one is not a number."""
        if not self.entries:
            return 0.0
        norm = float(torch.linalg.vector_norm(self.gradient, torch.inf))
        return torch.inf if math.isnan(norm) else norm

    # -- the step ----------------------------------------------------------------------------------------------------

    def buckets(self) -> Iterator[slice]:
        """Slices of the flat order of `bucket_numel` entries; the last may be shorter."""
        for start in range(0, self.entries, max(1, self.bucket_numel)):
            yield slice(start, min(self.entries, start + self.bucket_numel))

    def step(self, rule: UpdateRule, factor: float = 1.0) -> None:
        """Step all weights by their gradients times `factor`, which overwrites the gradients."""
        for _ in self.step_buckets(rule, factor):
            pass

    def step_buckets(self, rule: UpdateRule, factor: float = 1.0) -> Iterator[slice]:
        """Step the weights bucket by bucket by their gradients times `factor`, which overwrites the gradients.

        Yields each bucket before it reads the bucket's gradient. `finish` counts the update."""
        if self.offloader is None:
            for bucket in self.buckets():
                yield bucket
                moments = {name: moment[bucket] for name, moment in self.rule.moments.items()}
                gradient = (self.gradient if self.full_gradient is None else self.full_gradient)[bucket]
                self._step(rule, bucket, self.bucket_weights(bucket), moments, gradient, factor)
            return
        host_states = {**self.rule.moments, **({"master": self.rule.weights[0]} if self.half else {})}
        for bucket, copies in self.offloader.fetch_buckets(host_states, list(self.buckets())):
            yield bucket
            moments = {name: copies[name] for name in self.rule.moments}
            weights = [copies["master"]] if self.half else self.bucket_weights(bucket)
            full_gradient = copies.get("gradient")
            gradient = self.gradient[bucket] if full_gradient is None else full_gradient
            self._step(rule, bucket, weights, moments, gradient, factor)

    @torch.no_grad()
    def _step(
        self,
        rule: UpdateRule,
        bucket: slice,
        weights: list[torch.Tensor],
        moments: dict[str, torch.Tensor],
        gradient: torch.Tensor,
        factor: float,
    ) -> None:
        state = RuleState(weights, moments, self.rule.updates, bucket.start)
        if self.fused is not None:
            self.fused(rule, state, self.gradient[bucket], factor)
        else:
            if self.half:
                gradient.copy_(self.gradient[bucket])
            if factor != 1.0:
                gradient.mul_(factor)
            rule.step(state, gradient)
        if self.half:
            self._round_bucket(bucket, weights[0])
        elif bucket.start < self.indexed:
            self._expand(bucket, weights[0])

    def _parts(self, bucket: slice) -> tuple[slice, slice]:
        """The parts of a bucket that belong to pruned weights and to others."""
        end = min(max(bucket.start, self.indexed), bucket.stop)
        return slice(bucket.start, end), slice(end, bucket.stop)

    def _expand(self, bucket: slice, values: torch.Tensor) -> None:
        """Write the compressed `values` of a bucket to the pruned weights."""
        begin = self.mark()
        for parameter, part, position in self.flat.overlaps(self._parts(bucket)[0]):
            expand(values[position], self.kept[id(parameter)][part], parameter.data)
        self.pieces.append((EXPAND, begin, self.mark()))

    def bucket_weights(self, bucket: slice) -> list[torch.Tensor]:
        """Full-precision weights of a bucket: slices of the flat weights, or of the layers' own.

        Of the layers' own weights, pruned ones are copied to one compressed tensor, the first of the list."""
        if self.half:
            return [self.rule.weights[0][bucket]]
        if not self.indexed and bucket == slice(0, self.entries):
            return self.rule.weights
        compressed: list[torch.Tensor] = []
        indexed, unpruned = self._parts(bucket)
        if bucket.start < self.indexed:
            kept_weights = torch.empty(indexed.stop - indexed.start, dtype=self.dtype, device=self.device)
            begin = self.mark()
            for parameter, part, position in self.flat.overlaps(indexed):
                index = self.kept[id(parameter)][part]
                torch.index_select(parameter.data.view(-1), 0, index, out=kept_weights[position])
            self.pieces.append((EXPAND, begin, self.mark()))
            compressed.append(kept_weights)
        return [*compressed, *(parameter.data.view(-1)[part] for parameter, part, _ in self.flat.overlaps(unpruned))]

    def _round_bucket(self, bucket: slice, weights: torch.Tensor) -> None:
        """Round the full-precision weights of a bucket to the half-precision copies."""
        indexed, unpruned = self._parts(bucket)
        count = indexed.stop - indexed.start
        if count:
            self._expand(bucket, weights[:count].to(self.device, self.half))
        for parameter, part, position in self.flat.overlaps(unpruned):
            parameter.data.view(-1)[part].copy_(weights[count:][position])

    def weights_moved(self) -> None:
        """Follow the layers' weights to other tensors."""
        self.rule.weights = self.rule.weights if self.half else [p.data for p in self.flat.order]

    def finish(self, stepped: bool) -> None:
        """End an update: clear the gradient and count a step."""
        self.gradient.zero_()
        self.written = self._versions()
        self.rule.updates += stepped

    # -- contents of checkpoints and records -------------------------------------------------------------------------

    def export(self, parameter: nn.Parameter) -> Mapping[str, torch.Tensor]:
        """Live full-precision weight and moments of one parameter, in its shape.

        For a pruned parameter the shape is (kept,), and the index is included; in one precision its weight is the
        layer's own, which is dense."""
        index = self.kept.get(id(parameter))
        shape = parameter.shape if index is None else index.shape
        weight = self._part(self.rule.weights[0], parameter).view(shape) if self.half else parameter.data
        moments = {name: self._part(m, parameter).view(shape) for name, m in self.rule.moments.items()}
        return {"weight": weight, **moments, **({} if index is None else {"index": index})}

    def round_weights(self) -> None:
        """Update the half-precision copies after full-precision weights were written."""
        if self.half and self.entries:
            self._round_bucket(slice(0, self.entries), self.rule.weights[0])
            self.pieces = []  # these belong to no batch

    def take_pieces(self) -> list[tuple[str, float, float]]:
        """Return and reset the pieces of compression and expansion."""
        pieces, self.pieces = self.pieces, []
        return pieces

    def allocated(self, home: str = "device") -> dict[str, int]:
        """Bytes of permanent states at `home`, by the layout's kinds."""
        kinds = {state.kind: 0 for state in self.layout if state.life == "always" and state.home == home}
        read = [(self.layout.read, parameter.data) for parameter in self.parameters]
        for state, tensor in (*read, *self.permanent):
            if state.home == home:
                kinds[state.kind] += tensor.nbytes
        return kinds
