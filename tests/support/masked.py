"""Reference of training in one process, also with masked weights and gradients, and its comparison with ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from suite.conformance.reference import SEED, Reference, as_tuple
from suite.core.grid import Grid
from suite.core.protocols import MaskMethod
from suite.engine.engine import Engine
from suite.engine.optim.loss_scaler import DynamicLossScaler
from suite.engine.optim.optimizer import RuleState
from suite.engine.pruning.settings import Pruning
from suite.engine.random_state import drawing, initial
from suite.memory.layout import compressed, resident
from suite.pruning.mask import Indices, View, prunable
from tests.support.cases import Case, engine_of


def random_mask(case: Case, sparsity: float, what: str = "weights") -> Indices:
    """A random mask of the case's layers, with equal indices at all ends of a tie."""
    generator = torch.Generator().manual_seed(7)
    duplicates = {end: ends[0] for ends in case.tied_ends for end in ends[1:]}
    mask: Indices = {}
    for number, make in enumerate(case.layers):
        with drawing(*initial(SEED, number)):
            layer = make()
        for name in prunable(layer, what):
            entries = layer.get_parameter(name).numel()
            kept_entries = max(1, round((1 - sparsity) * entries))
            mask[number, name] = torch.randperm(entries, generator=generator)[:kept_entries].sort().values.int()
    for last, first in duplicates.items():
        if last in mask:
            mask[last] = mask[first]
    return mask


class FixedMask(MaskMethod):
    """A pruning method with a fixed mask, of which each stage draws its part after `after` batches."""

    def __init__(self, indices: Indices, after: int = 0) -> None:
        self.indices, self.after = indices, after

    def draws_after(self, batches: int) -> bool:
        return batches == self.after

    def draw(self, view: View) -> Indices:
        return {key: self.indices[key] for key in view.keys if key in self.indices}


class MaskedLoop(Reference):
    """Training in one process with dense states: masks multiply weights and gradients.

    In mixed precision passes and sums have half precision and steps full precision. A batch is skipped, and the scale
    halved, if a sum of its gradients could overflow or is not finite, which is decided before any sum is computed.
    Each weight has its own optimizer state; no state is flat.

    Args:
        indices: Kept entries by layer and name; weights without an entry are kept whole.
        half: Type of passes, with full-precision master weights; None for one precision.
        scale: Loss scale at the start.
        clip_norm: Largest norm of all gradients.
    """

    def __init__(
        self,
        case: Case,
        replicas: int,
        rule: Any,
        indices: Indices,
        *,
        half: str | None = None,
        scale: float = 1.0,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(case, replicas)
        self.rule, self.first, self.scale, self.skipped, self.clip_norm = rule, 0, scale, 0, clip_norm
        self.masks = self._masks(indices)
        for parameter, mask in zip(self.parameters(), self.masks, strict=True):
            parameter.data.mul_(mask)
        self.masters = [p.detach().clone() for p in self.parameters()]
        if half:
            self.half = getattr(torch, half)
            for layer in self.layers:
                layer.to(self.half)
        self.states = [
            RuleState([w], {name: torch.zeros_like(w).reshape(-1) for name in rule.states}) for w in self.masters
        ]

    def _masks(self, indices: Indices) -> list[torch.Tensor]:
        masks = []
        for number, layer in enumerate(self.layers):
            for name, parameter in layer.named_parameters():
                mask = torch.ones(parameter.numel(), dtype=torch.bool)
                if (index := indices.get((number, name))) is not None:
                    mask = torch.zeros_like(mask).index_fill(0, index.long(), True)
                masks.append(mask.view(parameter.shape))
        return masks

    def prune(self, indices: Indices) -> None:
        """Set pruned entries of weights, moments and half-precision copies to zero, during a training."""
        self.masks = self._masks(indices)
        for parameter, state, mask in zip(self.parameters(), self.states, self.masks, strict=True):
            parameter.data.mul_(mask)
            for tensor in (*state.weights, *state.moments.values()):
                tensor.view(mask.shape).mul_(mask)

    def train(self, batch: tuple[Any, Any]) -> float:
        loss, sums = self.gradients(batch, self.first, self.scale)
        loss /= self.scale
        self.first += as_tuple(batch[0])[0].shape[0] // (self.case.microbatch * self.replicas)
        if self.half and self._overflows(sums):
            self.skipped += 1
            self.scale /= 2
            return loss
        full = [(g * m).to(w.dtype).div_(self.scale) for g, m, w in zip(sums, self.masks, self.masters, strict=True)]
        if self.clip_norm:
            duplicates = {end for ends in self.case.tied_ends for end in ends[1:]}
            names = [(n, name) for n, layer in enumerate(self.layers) for name, _ in layer.named_parameters()]
            norm = sum(
                float(g.double().pow(2).sum()) for g, key in zip(full, names, strict=True) if key not in duplicates
            )
            full = [g * min(1.0, self.clip_norm / (norm**0.5 + 1e-6)) for g in full]
        for state, gradient, parameter in zip(self.states, full, self.parameters(), strict=True):
            self.rule.step(state, gradient.reshape(-1))
            parameter.data.copy_(state.weights[0])
        return loss

    def _overflows(self, sums: Sequence[torch.Tensor]) -> bool:
        addends = self.replicas * max((len(tie) for tie in self.ties), default=1)
        fits = self.largest * addends <= torch.finfo(self.half).max
        return not (fits and all(torch.isfinite(gradient).all() for gradient in sums))


def dense_states(engine: Engine) -> list[torch.Tensor]:
    """Full-precision weights, moments and weights of passes of this stage, with zeros at pruned entries."""
    state = engine.state.model_states
    full = [state.dense(state.rule.weights[0], p) if state.half else p.data for p in state.parameters]
    moments = [[state.dense(m, p) for m in state.rule.moments.values()] for p in state.parameters]
    return [
        t.detach().reshape(-1).clone()
        for weight, weight_moments, p in zip(full, moments, state.parameters, strict=True)
        for t in (weight, *weight_moments, p.data)
    ]


class TrainingCheck:
    """States of training in one process after every batch, for comparison with the ranks of a grid.

    Args:
        sparsity: Share of pruned entries; None for training without pruning.
        scale: Loss scale at the start.
        batches: Microbatches per replica of each batch.
        close: Relative tolerance; 0 compares bit for bit.
        options: Further arguments of the engine.
    """

    def __init__(
        self,
        case: Case,
        grid: Grid,
        rule: Any,
        *,
        sparsity: float | None = None,
        what: str = "weights",
        half: str | None = None,
        scale: float = 1.0,
        batches: Sequence[int] = (4, 1, 3, 2),
        close: float = 0.0,
        **options: Any,
    ) -> None:
        self.case, self.grid, self.rule, self.half, self.close = case, grid, rule, half, close
        self.scale, self.indices, self.options = scale, {}, {"memory": resident, **options}
        if sparsity is not None:
            self.indices = random_mask(case, sparsity, what)
            self.options = {"memory": compressed, **options}
            self.options["pruning"] = Pruning(FixedMask(self.indices), sparsity, what)
        clip_norm = options.get("clip_norm")
        self.loop = loop = MaskedLoop(case, grid.data, rule, self.indices, half=half, scale=scale, clip_norm=clip_norm)
        self.batches = [case.batch(number, count, grid.data) for number, count in enumerate(batches)]
        self.expected = []  # loss, loss scale and states by weight after each batch
        for batch in self.batches:
            loss, pairs = loop.train(batch), zip(loop.parameters(), loop.states, strict=True)
            states = {
                id(p): [t.reshape(-1).clone() for t in (*s.weights, *s.moments.values(), p.data)] for p, s in pairs
            }
            self.expected.append((loss, loop.scale, states))

    def engine(self, world: Any) -> Engine:
        scaler = DynamicLossScaler(start=self.scale, least=2.0**-4) if self.half else None
        options = {"optimizer": self.rule, "half": self.half, "loss_scaler": scaler, **self.options}
        return engine_of(self.case, world, self.grid, **options)

    def rank(self, world: Any) -> int:
        """Train on this rank of the grid and compare after every batch. Returns the number of skipped batches."""
        engine, close = self.engine(world), self.close
        stage = engine.state.settings.layers
        assert bool(engine.state.model_states.kept) == any(number in stage for number, _ in self.indices)
        for number, (batch, (loss, scale, states)) in enumerate(zip(self.batches, self.expected, strict=True)):
            tensors = [t for p in self.loop.parameters(stage) for t in states[id(p)]]
            where = f"{self.case.name} {self.grid} {self.half} batch {number} rank {world.rank}"
            assert engine.train_batch(batch) == pytest.approx(loss, rel=close or 1e-12), where
            for actual, expected in zip(dense_states(engine), tensors, strict=True):
                if close:
                    assert torch.allclose(actual, expected, rtol=close, atol=close * float(expected.abs().max())), where
                else:
                    assert torch.equal(actual, expected), where
                assert torch.equal(actual[expected == 0], expected[expected == 0]), f"{where}: zeros"
            if self.half:
                assert engine.state.loss_scaler is not None
                assert engine.state.loss_scaler.scale == scale, where
            engine.evaluate([self.case.batch(90, 2, self.grid.data)])  # changes no training state
        assert engine.state.update.skipped == self.loop.skipped
        engine.close()
        return self.loop.skipped
