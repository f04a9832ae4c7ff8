"""Model states of a rank: form, type, size, place and lifetime of each.

A layout is a tuple of states, and a memory optimisation is a function from layout to layout, so that optimisations
compose (SAMO with offload) and their byte counts follow from the states. suite.engine.states holds the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from suite.core.errors import InvalidRequest, UnknownName

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}
INDEX = "int32"  # position in the flat view of a layer; no layer has 2^31 entries (SAMO III-B)


@dataclass(frozen=True, slots=True)
class ModelStateSpec:
    """One model state: `entries` numbers of type `dtype`. The page groups states by `kind`, for example moments.

    Attributes:
        life: When the state exists: always, during an update (step), or for one bucket of an update at a time.
    """

    name: str
    kind: str
    dtype: str
    entries: int
    home: Literal["device", "host"] = "device"
    life: Literal["always", "step", "bucket"] = "always"

    @property
    def bytes(self) -> int:
        return self.entries * BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Layout:
    """The model states of one rank."""

    states: tuple[ModelStateSpec, ...]

    def __iter__(self) -> Iterator[ModelStateSpec]:
        return iter(self.states)

    def __getitem__(self, name: str) -> ModelStateSpec:
        for state in self.states:
            if state.name == name:
                return state
        raise UnknownName("state", name, [state.name for state in self.states])

    @property
    def read(self) -> ModelStateSpec:
        """Weights that passes read: the half-precision copy in mixed precision, else the weights themselves."""
        return self["half" if any(state.name == "half" for state in self.states) else "master"]

    def bytes(self, *, home: str = "device", life: str | None = None) -> int:
        """Bytes of the states at `home`, of one lifetime or of all."""
        return sum(s.bytes for s in self.states if s.home == home and life in (None, s.life))

    def by_kind(self, *, home: str = "device", life: str = "always") -> dict[str, int]:
        kinds: dict[str, int] = {}
        for state in self.states:
            if state.home == home and state.life == life:
                kinds[state.kind] = kinds.get(state.kind, 0) + state.bytes
        return kinds


def dense(entries: int, moments: Sequence[str], dtype: str = "float32") -> Layout:
    """Weights, gradients and one buffer per moment, all of one type: 16 bytes per parameter with Adam in float32.

    A step works in place on the gradient, which is not needed afterwards.
    """
    return Layout(
        (
            ModelStateSpec("master", "weights", dtype, entries),
            ModelStateSpec("gradient", "gradients", dtype, entries),
            *(ModelStateSpec(name, "moments", dtype, entries) for name in moments),
        )
    )


Transform = Callable[[Layout], Layout]


def mixed_precision(layout: Layout, half: str = "float16") -> Layout:
    """Add half-precision copies of weights and gradients (AxoNN II, SAMO III).

    theta16 is `half` and its gradient `half_gradient`; theta32 is `master` and its gradient `gradient`. With Adam this
    is 2 + 2 + 4 + 4 + 8 = 20 bytes per parameter.
    """
    full = layout["master"]
    if BYTES[full.dtype] <= BYTES[half]:
        raise InvalidRequest(
            f"{half} copies of {full.dtype} weights", rule="copied into a narrower type", legal="float32 weights"
        )
    return Layout(
        (
            ModelStateSpec("half", "weights", half, full.entries),
            ModelStateSpec("half_gradient", "gradients", half, full.entries),
            *layout,
        )
    )


def samo(kept: int, of: int | None = None, *, bucket: int | None = None) -> Transform:
    """Compress the model states of a pruned network (SAMO III).

    All states except the weights that passes read hold the remaining entries only. One 32-bit index into the flat view
    of each weight serves all states (III-B). At the end of a step a compressed half-precision copy of the weights is
    expanded (III-C). With Adam this is 24 * kept + 2 * of bytes (Equation 2), and 20 bytes per unpruned entry.

    In one precision passes read the only weights. A compressed copy of them exists during a step: with Adam in float32
    20 * kept + 4 * of bytes, and 16 bytes per unpruned entry.

    Args:
        kept: Remaining entries of the pruned weights.
        of: Entries of the pruned weights before pruning; None means all weights are pruned.
        bucket: Entries that are expanded at a time at the end of a step; None means all.
    """

    def compress(layout: Layout) -> Layout:
        read = layout.read
        unpruned = read.entries - (read.entries if of is None else of) + kept
        return Layout(
            (
                *(s if s is read else replace(s, entries=min(unpruned, s.entries)) for s in layout),
                ModelStateSpec("index", "indices", INDEX, kept),
                ModelStateSpec(f"{read.name}_copy", "scratch", read.dtype, min(bucket or kept, kept), life="step"),
            )
        )

    return compress


def offload(*, bucket: int, sets: int = 1) -> Transform:
    """Move the optimizer's states to host memory: moments, and in mixed precision also the full weights (AxoNN V-B).

    An update fetches `bucket` entries of each state at a time. The device then needs the full-precision gradient and
    the scratch memory of the optimizer step for one bucket only. For example, mixed precision with Adam needs
    4 * entries + 16 * bucket bytes on the device.

    Args:
        bucket: Entries that an update fetches at a time.
        sets: Buffers per state. With two, one is copied while the other is stepped, for 16 * bucket more bytes.
    """
    if min(bucket, sets) < 1:
        raise InvalidRequest(f"{sets} sets of buckets of {bucket} entries", rule="at least 1 of each", legal="1")

    def move(layout: Layout) -> Layout:
        halved = layout.read.name == "half"
        states: list[ModelStateSpec] = []
        for state in layout:
            part = min(sets, -(-state.entries // bucket)) * min(bucket, state.entries)
            if state.kind == "moments" or (halved and state.name == "master"):
                states.append(replace(state, home="host"))
                states.append(replace(state, name=f"{state.name}_bucket", kind="scratch", entries=part, life="bucket"))
            elif halved and state.name == "gradient":
                states.append(replace(state, kind="scratch", entries=part, life="bucket"))
            elif state.life == "step":  # scratch of a step exists for one bucket at a time
                states.append(replace(state, entries=min(bucket, state.entries), life="bucket"))
            else:
                states.append(state)
        return Layout(tuple(states))

    return move


def zero_1(replicas: int) -> Transform:
    """Partition optimizer states over data-parallel replicas (ZeRO stage 1, Rajbhandari et al. 2020).

    Each replica holds and steps its part of the full-precision weights, gradient and moments. Half-precision weights
    and gradients stay whole; a layout without them is refused.
    """

    def share(layout: Layout) -> Layout:
        whole = ("index", layout["half"].name, layout["half_gradient"].name)
        return Layout(tuple(s if s.name in whole else replace(s, entries=-(-s.entries // replicas)) for s in layout))

    return share


# Layouts of conf/memory. Their arguments: entries of the rank, moments of the optimizer, type of full precision, type
# of the half-precision copies (`half`), and for a pruned network the remaining entries `kept` of its `of` prunable
# entries


def resident(
    entries: int, moments: Sequence[str], dtype: str = "float32", *, half: str | None = None, kept: int = 0, of: int = 0
) -> Layout:
    """All states on the device: with Adam 16 bytes per parameter, or 20 with half-precision copies."""
    if of:
        what = f"{kept} of {of} entries in a layout that keeps all"
        raise InvalidRequest(what, rule="compressed", legal="memory=compressed")
    layout = dense(entries, moments, dtype)
    return mixed_precision(layout, half) if half else layout


def mixed(entries: int, moments: Sequence[str], dtype: str = "float32", *, half: str = "float16") -> Layout:
    """Mixed precision: 20 bytes per parameter with Adam."""
    return resident(entries, moments, dtype, half=half)


def offloaded(
    entries: int,
    moments: Sequence[str],
    dtype: str = "float32",
    *,
    bucket: int,
    half: str | None = "float16",
    sets: int = 1,
    kept: int = 0,
    of: int = 0,
) -> Layout:
    """Optimizer states in host memory; the device holds 4 bytes per parameter and 16 per bucket entry.

    This is mixed precision with Adam. In one precision passes read the weights themselves, so only the moments move:
    the device holds 8 bytes per parameter and 8 per bucket entry.
    """
    return offload(bucket=bucket, sets=sets)(resident(entries, moments, dtype, half=half, kept=kept, of=of))


def compressed(
    entries: int,
    moments: Sequence[str],
    dtype: str = "float32",
    *,
    half: str | None = None,
    kept: int = 0,
    of: int = 0,
    bucket: int | None = None,
    offloaded: bool = False,
    sets: int = 1,
) -> Layout:
    """SAMO on the pruned weights, which keep `kept` of `of` entries; without pruning the same as `resident`.

    With `offloaded` the compressed optimizer states are in host memory too. In mixed precision with Adam the device
    then holds 2 * of + 6 * kept bytes of pruned weights, 4 bytes per unpruned entry, and 16 per bucket entry (18 where
    it is pruned).
    """
    layout = resident(entries, moments, dtype, half=half)
    layout = samo(kept, of, bucket=bucket)(layout) if of else layout
    if not offloaded:
        return layout
    return offload(bucket=bucket or max(1, layout["gradient"].entries), sets=sets)(layout)


def pruned(
    entries: int, moments: Sequence[str], dtype: str = "float32", *, sparsity: float, half: str = "float16"
) -> Layout:
    """SAMO in mixed precision: a share of `1 - sparsity` of the states, and all half-precision weights."""
    if not 0 <= sparsity <= 1:
        raise InvalidRequest(f"sparsity={sparsity}", rule="a share from 0 to 1", legal="sparsity=0.9")
    return samo(round((1 - sparsity) * entries))(mixed(entries, moments, dtype, half=half))


def sparse(
    entries: int, moments: Sequence[str], dtype: str = "float32", *, sparsity: float, half: str = "float16"
) -> Layout:
    """All states of a pruned network by its kept entries, for sparse kernels."""
    layout = pruned(entries, moments, dtype, sparsity=sparsity, half=half)
    kept = layout["index"].entries
    return Layout(tuple(replace(s, entries=kept) for s in layout if s.name != "half_copy"))
