"""Cells of public measurements: one row for each measured training step of a source.

A file of cells is a list in YAML. The loader takes every value that the file's header lists, for public cells and for
those that are kept apart.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from suite.config.typed_yaml import read_typed
from suite.core.errors import InvalidRequest, UnknownName

CELLS = Path(__file__).with_name("cells.yaml")
UNITS = {"MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30}  # bytes of a printed unit of memory


@dataclass(frozen=True, slots=True)
class CellMachine:
    """What a source tells of its machine."""

    gpu: str
    gpus_per_node: int | None
    intra_node: str | None = None
    inter_node: str | None = None


@dataclass(frozen=True, slots=True)
class CellModel:
    """What a source tells of its model."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int | None
    ffn: int | None
    ffn_gated: bool | None
    vocab: int | None
    tied_embeddings: bool | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a source prints of a step. Memory is of the fullest device, in `memory_unit`."""

    step_seconds: float | None
    peak_memory: float | None
    memory_unit: str | None

    @property
    def peak_bytes(self) -> float | None:
        """Bytes of the fullest device; None if the source prints none. Raises UnknownName for an unknown unit."""
        if self.peak_memory is None:
            return None
        if self.memory_unit not in UNITS:
            raise UnknownName("memory_unit", str(self.memory_unit), UNITS)
        return self.peak_memory * UNITS[self.memory_unit]


@dataclass(frozen=True, slots=True)
class PublicCell:
    """One measured training step, with the settings that its source tells. None: the source does not tell."""

    id: str
    group: str
    source: str
    kind: tuple[str, ...]
    machine: CellMachine
    gpus: int
    stack: str
    model: CellModel
    seq: int
    tp: int
    pp: int
    vpp: int | None
    dp: int
    cp: int
    sequence_parallel: bool | None
    sharding: str | None
    microbatch: int | None
    global_batch: int | None
    precision: str | None
    recompute: str | None
    schedule: str | None
    attention: str | None
    fused_norm: bool | None
    layers_per_stage: str | None
    generation: str
    quality: Literal["high", "medium", "low"]
    known: bool
    status: Literal["ok", "oom"]
    primary: str
    measured: Measurement
    derived_tokens_per_second_per_gpu: float | None
    noise_percent: float | None = None
    dropout: bool | None = None

    @property
    def tokens_per_second(self) -> float | None:
        """Measured tokens per second and device."""
        return self.derived_tokens_per_second_per_gpu

    @property
    def family(self) -> str:
        """Family of sources: the name of the software, without its version and site."""
        return re.split(r",| \(| \d", self.stack)[0]

    @property
    def scored(self) -> bool:
        """Whether the cell's speed is scored: measured, and not of low quality."""
        return self.status == "ok" and self.quality != "low" and self.tokens_per_second is not None


def load_cells(path: Path = CELLS) -> tuple[PublicCell, ...]:
    """Cells of a file, in order. Raises InvalidRequest for a file that cannot be read, and for an impossible cell."""
    cells = tuple(read_typed(list[PublicCell], path, key="id"))
    if twice := next((name for name, count in Counter(cell.id for cell in cells).items() if count > 1), None):
        raise InvalidRequest(f"{path.name}: two cells id={twice}", rule="ids are distinct", legal=f"id={twice}_2")
    for cell in cells:
        if fault := next(_faults(cell), None):
            field, rule, legal = fault
            raise InvalidRequest(f"{path.name}: {cell.id}.{field}", rule=rule, legal=legal)
    return cells


def _faults(cell: PublicCell) -> Iterator[tuple[str, str, str]]:
    """For each fault of a cell: the field with its value, the rule, and a legal value."""
    for name, value in (("gpus_per_node", cell.machine.gpus_per_node), ("gpus", cell.gpus), ("seq", cell.seq)):
        if value is not None and value < 1:
            yield f"{name}={value}", "at least 1", f"{name}=8"
    product = cell.tp * cell.pp * cell.dp * cell.cp
    if cell.gpus != product and cell.quality != "low":  # of low quality: the source may contradict itself
        yield f"gpus={cell.gpus}", "tp x pp x dp x cp, unless quality=low", f"gpus={product}"
    name, tokens = "derived_tokens_per_second_per_gpu", cell.derived_tokens_per_second_per_gpu
    if tokens is not None and not 0 < tokens < math.inf:
        yield f"{name}={tokens}", "a positive number, or null", f"{name}=1000.0"
