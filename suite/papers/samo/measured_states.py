"""Answers to SAMO's claims on bytes of model states, from tensors of the engine after one batch.

All weights are in one prunable linear layer, as the paper counts. The permanent memory of a rank is the set of storages
reachable from its states. Further memory of a step is counted at allocation. No planned layout is used. The half
precision is bfloat16, which CPUs multiply and which is as wide as the paper's float16."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from torch import nn

from suite.claims.answer import Cases, Question, range_of_setting
from suite.config.compose import resolve
from suite.core.units import si
from suite.engine.engine import Engine
from suite.engine.pruning.settings import Pruning
from suite.papers.measured import states_of, step_bytes, storages, tensors_of
from suite.papers.samo.measured import HALF, engine
from suite.pruning.random import RandomMask

ENTRIES = 4000  # network size for bytes per parameter and percentages


def small(entries: int, density: Fraction | None = None, half: str | None = HALF) -> Engine:
    """Engine of one rank with `entries` weights, pruned to the share `density`, or unpruned."""
    width = max(side for side in range(1, int(entries**0.5) + 1) if entries % side == 0)
    pruning = None if density is None else Pruning(RandomMask(), float(1 - density))
    return engine([nn.Linear(width, entries // width, bias=False)], pruning, microbatch=1, half=half)


def permanent_bytes(trained: Engine) -> dict[str, int]:
    """Permanent bytes of a rank by the paper's names of states; `else` holds all other bytes."""
    sizes = storages(tensors_of(vars(trained.state.model_states)))
    bytes_by_state = {
        name: sum(sizes.pop(key, 0) for key in storages(each)) for name, each in states_of(trained).items()
    }
    return {**bytes_by_state, "else": sum(sizes.values())}


def total(entries: int, density: Fraction | float | None = None, half: str | None = HALF) -> int:
    """Bytes of a rank's states during the optimizer step, their maximum, with all weights in one bucket."""
    trained = small(entries, None if density is None else _exact(density), half)
    return sum(permanent_bytes(trained).values()) + step_bytes(trained)


def saved(entries: int, sparsity: float | str) -> Fraction:
    """Percent of a dense network's bytes that SAMO saves, from bytes of ranks with and without it."""
    before = total(entries)
    return Fraction(100 * (before - total(entries, 1 - _exact(sparsity))), before)


def _exact(share: float | str | Fraction) -> Fraction:
    return Fraction(str(share))  # the printed decimal: 0.9 is 9/10


# -- answers ---------------------------------------------------------------------------------------------------------


def bytes_per_parameter(question: Question, source: Any, *, state: str) -> tuple[Cases, str]:
    bytes_by_state = permanent_bytes(small(ENTRIES))
    return [
        [Fraction(bytes_by_state[state], ENTRIES)]
    ], f"bytes that a rank allocated for {si(ENTRIES)} weights, {HALF}"


def bytes_of(states: Sequence[str], entries: int, density: float) -> int:
    """Bytes of these states that a rank with SAMO allocated."""
    bytes_by_state = permanent_bytes(small(entries, _exact(density)))
    return sum(bytes_by_state[name] for name in states)


def temporary(entries: int, density: float) -> int:
    """Peak of the bytes that a step with SAMO allocates and frees, with all weights in one bucket."""
    return step_bytes(small(entries, _exact(density)))


def saving(entries: int, sparsity: float) -> int:
    """Bytes of a rank without SAMO minus bytes with SAMO."""
    return total(entries) - total(entries, 1 - _exact(sparsity))


def break_even(question: Question, source: Any) -> tuple[Cases, str]:
    entries, dense_bytes = 400, total(400)
    break_even_entries = (
        bisect_right(range(entries + 1), dense_bytes, key=lambda kept: total(entries, Fraction(kept, entries))) - 1
    )
    return [
        [1 - Fraction(break_even_entries, entries)]
    ], f"most unpruned weights of {entries} for which SAMO needs no more bytes: {break_even_entries}"


def saving_ends(question: Question, source: Any) -> tuple[Cases, str]:
    """Percent saved at both ends of the setting's range of sparsities."""
    sparsities = range_of_setting(question, "sparsity")
    note = f"bytes of ranks with and without SAMO at {' and '.join(sparsities)}"
    return [[saved(ENTRIES, share) for share in sparsities]], note


def overhead(question: Question, source: Any) -> tuple[Cases, str]:
    single, both = total(ENTRIES, half=None), total(ENTRIES)
    return [[Fraction(100 * (both - single), single)]], f"{both} against {single} bytes for {si(ENTRIES)} weights"


def compressible(question: Question, source: Any) -> tuple[Cases, str]:
    """Share of a dense rank's states that are smaller on a rank with SAMO."""
    before, after = permanent_bytes(small(ENTRIES)), permanent_bytes(small(ENTRIES, Fraction(1, 2)))
    names = [name for name in before if after[name] < before[name]]
    share = Fraction(100 * sum(before[name] for name in names), sum(before.values()))
    return [[share]], f"smaller at a sparsity of 0.5: {', '.join(names)}"


def index_width(question: Question, source: Any, *, model: str) -> tuple[Cases, str]:
    """Bits of an allocated index, or bits that number the entries of the model's largest layer if these are more."""
    trained = small(ENTRIES, Fraction(1, 2))
    widths = {8 * index.element_size() for index in trained.state.model_states.kept.values()}
    shape: Any = resolve([f"model={model}"]).model.shape.build()
    largest = max(layer.parameters for layer in shape.shapes())
    whole = (shape.parameters - 1).bit_length()
    needed = (largest - 1).bit_length()
    note = f"{needed} bits number the largest layer of {model}; {whole} bits would number all its parameters"
    return [[max(width, needed)] for width in sorted(widths)], note
