"""From a cell to a training setup: one function for the cells of all sources.

The function reads fields only; it knows no source, group or cell. A field that the source does not tell takes the
default of its software generation (defaults.yaml).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from suite.config.families import content, groups
from suite.config.plugins import build
from suite.config.typed_yaml import read_typed
from suite.core.errors import InvalidRequest, SuiteError, UnknownName
from suite.core.protocols import Schedule
from suite.simulate.network.machine import Link, Machine
from suite.simulate.operations.generation import generations
from suite.simulate.operations.setup import TrainingSetup
from suite.simulate.validation.cells import CellMachine, PublicCell
from suite.workload.language_model import LanguageModel

T = TypeVar("T")
Setting = bool | int | str
ROUNDS = 4  # microbatches per pipeline rank where a source tells no batch
PRECISIONS = {
    "tf32": "tensorfloat32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8",
    "fp8-cs": "float8",
    "mxfp8": "float8",
    "fp4": "float4",
    "nvfp4": "float4",
}
RECOMPUTE = {
    "none": "none",
    "full": "full",
    "selective": "selective",
    "selective (by operator)": "operators",
    "selective (every other layer)": "alternate",
}
ATTENTION = {
    "unfused": "unfused",
    "not_flash": "fused_softmax",
    "fused_softmax": "fused_softmax",
    "flash1": "flash1",
    "flash2": "flash2",
    "flash3": "flash3",
    "flash": None,  # the version is not told: that of the generation
}
SPLITS = {
    "even": "even",
    "first_and_last_one_less": "ends_less",
    "balanced_by_flops": "flops",
    "uneven_not_told": "ends_less",
}


@dataclass(frozen=True, slots=True)
class PublicSchedule:
    """A schedule of a source in terms of the suite.

    Attributes:
        name: Schedule of conf/schedule, as each row of the report states it.
        waits_for_all: Whether stages update together.
        spread: Whether all stages share the vocabulary.
    """

    name: str
    waits_for_all: bool = True
    spread: bool = False


SCHEDULES = {
    "1f1b": PublicSchedule("one_f_one_b"),
    "interleaved_1f1b": PublicSchedule("interleaved"),
    "interleaved_1f1b_variant": PublicSchedule("interleaved"),
    "zb_1p": PublicSchedule("zb_h1", waits_for_all=False),
    "zb_2p": PublicSchedule("zb_h2", waits_for_all=False),
    "zb_2p_synchronised_step": PublicSchedule("zb_h2"),
    "zb_v": PublicSchedule("zbv", waits_for_all=False),
    "v_half": PublicSchedule("v_half", waits_for_all=False),
    "v_half_vocabulary_spread": PublicSchedule("v_half", waits_for_all=False, spread=True),
    "v_min": PublicSchedule("v_min", waits_for_all=False),
}


def _known(field: str, value: str, legal: Mapping[str, T]) -> T:
    """The entry of a value. Raises UnknownName with the nearest known name."""
    if value not in legal:
        raise UnknownName(field, value, legal)
    return legal[value]


@dataclass(frozen=True, slots=True)
class CellSettings:
    """Settings of a cell that a default fills where the source does not tell them."""

    precision: str
    recompute: str
    sharding: str
    attention: str
    sequence_parallel: bool
    microbatch: int
    vocabulary: int
    tied: bool
    fused_norm: bool
    layers_per_stage: str
    vpp: int


@dataclass(frozen=True, slots=True)
class Defaults:
    """Content of defaults.yaml: one value for each setting and generation, and other plausible values."""

    defaults: Mapping[str, CellSettings]
    plausible: Mapping[str, tuple[Setting, ...]]


@cache
def default_settings() -> Defaults:
    """Values of settings that sources do not tell."""
    defaults: Defaults = read_typed(Defaults, Path(__file__).with_name("defaults.yaml"))
    return defaults


@cache
def machines() -> Mapping[str, Machine]:
    """Data sheets of conf/machine by the names of their devices."""
    sheets = [content("machine", name).keys for name in groups()["machine"]]
    built = [build(sheet) for sheet in sheets if sheet.get("devices")]
    return {device: machine for machine in built for device in machine.devices}


def schedule_of(name: str, chunks: int) -> Schedule:
    """A schedule of conf/schedule. `chunks` are the stages per rank of the interleaved one, which is 1F1B with one."""
    keys = content("schedule", "one_f_one_b" if name == "interleaved" and chunks == 1 else name).keys
    schedule: Schedule = build({**keys, "chunks": chunks} if "chunks" in keys else keys)
    return schedule


RATES = {"omni-path": 100, "edr": 100, "hdr": 200, "ndr": 400, "slingshot": 200}
"""Gb/s of one link, by the name of its technology."""


def link_rate(text: str) -> float | None:
    """bytes/s of one link of a named technology; None without a known name."""
    return next((rate * 1e9 / 8 for name, rate in RATES.items() if name in text.lower()), None)


def node_bandwidth(text: str | None) -> float | None:
    """bytes/s of all adapters of a node, as a source describes them; None if it does not.

    It reads "8 adapters of 200 Gb/s", "1600 Gb/s per node" and "500 GB/s per node".
    """
    if not text:
        return None
    if (found := re.search(r"(\d+) links? per node", text)) and (rate := link_rate(text)):
        return int(found[1]) * rate
    if found := re.search(r"(\d+)\s+(?:\S+\s+){0,5}?(\d+) Gb/s", text):
        return int(found[1]) * int(found[2]) * 1e9 / 8
    if found := re.search(r"(\d+) (Gb|GB)/s per node", text):
        return int(found[1]) * 1e9 / (8 if found[2] == "Gb" else 1)
    return None


def device_bandwidth(text: str | None) -> float | None:
    """bytes/s of the adapter of one device, where a source tells it."""
    found = re.search(r"(\d+) Gb/s\D* per GPU", text or "")
    return int(found[1]) * 1e9 / 8 if found else None


def modelled_machine(facts: CellMachine) -> Machine:
    """Data sheet of a device, with the node and the adapters that the source tells.

    A node of the source may be smaller than the domain of fast links (NVL72), which counts here.
    """
    machine = _known("gpu", facts.gpu, machines())
    # data sheets describe the device that a process uses, of which a module may hold two
    per_module = 2 if facts.gpu == "MI250X" else 1
    per_node = (facts.gpus_per_node or machine.devices_per_node // per_module) * per_module
    whole = node_bandwidth(facts.inter_node)
    each = device_bandwidth(facts.inter_node)
    domain = machine.devices_per_node if machine.devices_per_node > 8 else per_node
    if each is None:
        if whole is None:
            each = machine.between.bandwidth * machine.adapters / machine.devices_per_node
        else:
            each = whole / per_node
    return replace(machine, devices_per_node=domain, adapters=domain, between=Link(machine.between.latency, each))


def told(cell: PublicCell) -> dict[str, Setting | None]:
    """Each of `CellSettings` as the source of a cell tells it; None where it does not."""
    facts = asdict(cell) | {"vocabulary": cell.model.vocab, "tied": cell.model.tied_embeddings}
    return {field.name: facts[field.name] for field in fields(CellSettings)}


def assumed(cell: PublicCell) -> tuple[str, ...]:
    """Names of the settings that the source of a cell does not tell."""
    return tuple(name for name, value in told(cell).items() if value is None)


def complete_settings(cell: PublicCell, **changed: Setting) -> CellSettings:
    """Settings of a cell, with `changed` ones or the defaults of its generation where its source tells none."""
    defaults = asdict(_known("generation", cell.generation, default_settings().defaults))
    known = {name: value for name, value in told(cell).items() if value is not None}
    return CellSettings(**{**defaults, **changed, **known})


def to_setup(cell: PublicCell, **changed: Setting) -> TrainingSetup:
    """Training setup of a cell, with `changed` settings in place of defaults.

    Raises UnknownName for a value that the file's header does not list, and InvalidRequest for settings that contradict
    each other.
    """
    generation = _known(
        "generation", cell.generation, {name: generations()[name] for name in default_settings().defaults}
    )
    values = complete_settings(cell, **changed)
    facts, chunks = cell.model, values.vpp
    model = LanguageModel(
        facts.layers,
        facts.hidden,
        facts.heads,
        cell.seq,
        values.vocabulary,
        kv_heads=facts.kv_heads or facts.heads,
        ffn=facts.ffn or 4 * facts.hidden,
        gated=bool(facts.ffn_gated),
        tied=values.tied,
    )
    schedule, spread, waits = None, False, True
    if cell.pp > 1:
        public = _known("schedule", cell.schedule or "1f1b", SCHEDULES)
        schedule, spread, waits = schedule_of(public.name, chunks), public.spread, public.waits_for_all
    machine = modelled_machine(cell.machine)
    sharding, group, reshard = sharding_of(values.sharding, machine.devices_per_node)
    precision = _known("precision", values.precision, PRECISIONS)
    if cell.precision is None and precision not in machine.peak:
        precision = "float16"  # a default that the device does not have
    attention = _known("attention", values.attention, ATTENTION)
    if attention is None:
        attention = generation.flash_kernel(machine.family)
    return TrainingSetup(
        model,
        machine,
        generation,
        schedule,
        tensor=cell.tp,
        pipeline=cell.pp,
        data=cell.dp,
        context=cell.cp,
        microbatch=values.microbatch,
        batch=cell.global_batch or values.microbatch * cell.dp * (ROUNDS * cell.pp if cell.pp > 1 else 1),
        sequence_parallel=bool(values.sequence_parallel) and cell.tp > 1,
        sharding=sharding,
        shard_group=group,
        reshard=reshard,
        precision=precision,
        recompute=_known("recompute", values.recompute, RECOMPUTE),
        attention=attention,
        fused_norm=values.fused_norm,
        dropout=cell.dropout,
        split=_known("layers_per_stage", values.layers_per_stage, SPLITS),
        vocabulary="spread" if spread else "last",
        waits_for_all=waits,
    )


def scored_setups(cells: Iterable[PublicCell]) -> Iterator[tuple[PublicCell, TrainingSetup]]:
    """Scored cells and their setups, without the cells that the simulator refuses."""
    for cell in cells:
        if cell.scored:
            try:
                yield cell, to_setup(cell)
            except SuiteError:
                continue


def sharding_of(text: str, per_node: int) -> tuple[str, int, bool]:
    """Sharded states, the ranks over which they are sharded (0: all), and whether weights are gathered twice.

    FSDP that shards gradients and optimizer states only keeps gathered weights from the forward to the backward pass.
    """
    lowered = text.lower()
    if text == "none":
        return "none", 0, True
    if lowered.startswith("zero1"):
        groups = re.search(r"groups_of_(\d+)", lowered)
        return "optimizer", int(groups[1]) if groups else 0, True
    if "fsdp" in lowered and lowered.startswith("zero2"):
        return "parameters", 0, False
    if lowered.startswith("zero2"):
        return "gradients", 0, True
    if lowered.startswith("hybrid"):
        return "parameters", per_node, True
    if lowered.startswith(("zero3", "fsdp")):
        return "parameters", 0, True
    raise UnknownName("sharding", text, ("none", "zero1", "zero2", "zero3", "fsdp"))


def plausible_setups(cell: PublicCell) -> Iterator[tuple[str, TrainingSetup]]:
    """Setups with one unknown setting changed to each of its plausible values."""
    values = asdict(complete_settings(cell))
    for name in assumed(cell):
        for value in default_settings().plausible.get(name, ()):
            if value == values[name]:
                continue
            try:
                yield f"{name}={value}", to_setup(cell, **{name: value})
            except InvalidRequest:
                continue
