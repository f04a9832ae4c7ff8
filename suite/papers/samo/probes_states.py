"""Probes for the bytes of SAMO's model states: tensors of the engine after one batch.

Every weight is in one linear layer and may be pruned, which is how the paper counts. The permanent memory of a rank
is the set of storages that its states reach, each once; further memory of a step is counted at allocation. A layout
has no part in it. The half precision is bfloat16, which is as wide as the paper's float16 and which a CPU can
multiply."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import nn

from suite.config.compose import resolve
from suite.core.units import si
from suite.engine.engine import Engine
from suite.engine.memory_tracker import MemoryTracker
from suite.engine.pruning import Pruning
from suite.papers.common.answer import Cases, Question, range_of_setting
from suite.papers.common.probes import tensors_of
from suite.papers.samo.probes import HALF, engine
from suite.pruning.random import RandomMask

ENTRIES = 4000  # where only shares matter
COMPRESSED = ("grad16", "theta32", "grad32", "optimizer_state")


def small(entries: int, density: Fraction | None = None, half: str | None = HALF) -> Engine:
    """One rank with so many weights, of which the share `density` stays; None: it does not prune."""
    width = max(side for side in range(1, int(entries**0.5) + 1) if entries % side == 0)
    pruning = None if density is None else Pruning(RandomMask(), float(1 - density))
    return engine([nn.Linear(width, entries // width, bias=False)], pruning, microbatch=1, half=half)


def held(one: Engine) -> dict[str, int]:
    """Bytes that a rank holds for ever, by the paper's names; `else` are those that the paper does not name."""
    state, bytes_by_state = one.state.model_states, dict.fromkeys(("theta16", "index", "else", *COMPRESSED), 0)
    full = state.half is None
    names: dict[int, str] = {}
    for name, tensors in (
        ("theta32" if full else "theta16", [parameter.data for parameter in state.parameters]),
        ("grad32" if full else "grad16", [state.gradient]),
        ("theta32", state.rule.weights),
        ("grad32", [] if state.full_gradient is None else [state.full_gradient]),
        ("optimizer_state", list(state.rule.moments.values())),
        ("index", list(state.kept.values())),
    ):
        for tensor in tensors:
            names.setdefault(_place(tensor), name)
    seen: set[int] = set()
    for tensor in tensors_of(vars(state)):
        if _place(tensor) not in seen:
            seen.add(_place(tensor))
            bytes_by_state[names.get(_place(tensor), "else")] += tensor.untyped_storage().nbytes()
    return bytes_by_state


def _place(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def step_bytes(one: Engine) -> int:
    """The most bytes that the step of a batch allocates and gives back."""
    state, counter, peaks = one.state.model_states, MemoryTracker(), list[int]()
    stepped = state.step

    def watched(*args: Any, **more: Any) -> None:
        begun = counter.peak = counter.live
        stepped(*args, **more)
        peaks.append(counter.peak - begun)

    state.step = watched  # type: ignore[method-assign]
    weight = state.parameters[0]
    with counter:
        one.train_batch((torch.ones(1, weight.shape[1]), torch.ones(1, weight.shape[0])))
    (peak,) = peaks
    return peak


def total(entries: int, density: Fraction | None = None, half: str | None = HALF) -> int:
    """Bytes of a rank's states in the step, where they are most."""
    one = small(entries, density, half)
    return sum(held(one).values()) + step_bytes(one)


def saved(entries: int, sparsity: float | str) -> Fraction:
    """Percent of a dense network's bytes that SAMO does without."""
    before = total(entries)
    return Fraction(100 * (before - total(entries, 1 - _exact(sparsity))), before)


def _exact(share: float | str) -> Fraction:
    return Fraction(str(share))  # as printed: 0.9 is nine tenths


# -- answers ---------------------------------------------------------------------------------------------------------


def bytes_per_parameter(question: Question, source: Any, *, state: str) -> tuple[Cases, str]:
    bytes_by_state = held(small(ENTRIES))
    return [
        [Fraction(bytes_by_state[state], ENTRIES)]
    ], f"bytes that a rank allocated for {si(ENTRIES)} weights, {HALF}"


def dense_bytes(question: Question, source: Any) -> tuple[Cases, str]:
    values = [total(int(point["phi"])) for point in question.points]
    return [values], "bytes that a rank without pruning holds in its step"


def pruned_bytes(question: Question, source: Any, *, states: Sequence[str]) -> tuple[Cases, str]:
    """Of these states together, at the formula's points."""
    founds = [held(small(int(point["phi"]), _exact(point["f"]))) for point in question.points]
    return [
        [sum(bytes_by_state[name] for name in states) for bytes_by_state in founds]
    ], "bytes that a rank with SAMO allocated"


def temporary(question: Question, source: Any) -> tuple[Cases, str]:
    values = [step_bytes(small(int(point["phi"]), _exact(point["f"]))) for point in question.points]
    return [values], "the most bytes that a step with SAMO allocated and gave back, all weights in one bucket"


def samo_bytes(question: Question, source: Any) -> tuple[Cases, str]:
    values = [total(int(point["phi"]), _exact(point["f"])) for point in question.points]
    return [values], "bytes that a rank with SAMO holds in its step, all weights in one bucket"


def saving(question: Question, source: Any) -> tuple[Cases, str]:
    sizes = [(int(point["phi"]), 1 - _exact(point["p"])) for point in question.points]
    return [[total(phi) - total(phi, f) for phi, f in sizes]], "bytes of a rank without SAMO less those of one with it"


def break_even(question: Question, source: Any) -> tuple[Cases, str]:
    entries, dense_bytes = 400, total(400)
    break_even_entries = (
        bisect_right(range(entries + 1), dense_bytes, key=lambda kept: total(entries, Fraction(kept, entries))) - 1
    )
    return [
        [1 - Fraction(break_even_entries, entries)]
    ], f"of {entries} weights a rank with SAMO keeps {break_even_entries} in no more bytes"


def saving_ends(question: Question, source: Any) -> tuple[Cases, str]:
    """Percent saved at the sparsities that the setting goes from and to."""
    sparsities = range_of_setting(question, "sparsity")
    note = f"bytes of ranks with and without SAMO at {' and '.join(sparsities)}"
    return [[saved(ENTRIES, share) for share in sparsities]], note


def saving_line(question: Question, source: Any) -> tuple[Cases, str]:
    return [[saved(ENTRIES, point["p"]) for point in question.points]], "bytes of ranks with and without SAMO"


def overhead(question: Question, source: Any) -> tuple[Cases, str]:
    single, both = total(ENTRIES, half=None), total(ENTRIES)
    return [[Fraction(100 * (both - single), single)]], f"{both} against {single} bytes for {si(ENTRIES)} weights"


def compressible(question: Question, source: Any) -> tuple[Cases, str]:
    """Bytes of a dense rank's states that are smaller on a rank with SAMO."""
    before, after = held(small(ENTRIES)), held(small(ENTRIES, Fraction(1, 2)))
    names = [name for name in before if after[name] < before[name]]
    share = Fraction(100 * sum(before[name] for name in names), sum(before.values()))
    return [[share]], f"smaller at a sparsity of 0.5: {', '.join(names)}"


def index_width(question: Question, source: Any, *, model: str) -> tuple[Cases, str]:
    """Bits of an index as held; those that number the entries of a model's largest layer where these are more."""
    one = small(ENTRIES, Fraction(1, 2))
    widths = {8 * index.element_size() for index in one.state.model_states.kept.values()}
    shape: Any = resolve([f"model={model}"]).model.shape.build()
    largest = max(layer.parameters for layer in shape.shapes())
    whole = (shape.parameters - 1).bit_length()
    needed = (largest - 1).bit_length()
    note = f"{needed} bits number the largest layer of {model}; to number all its parameters takes {whole} bits"
    return [[max(width, needed)] for width in sorted(widths)], note
