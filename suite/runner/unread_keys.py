"""Refuse overrides that change nothing in a run.

A run with such an override would have a label that suggests an effect. suite.runner.keys_read lists the keys that
executors and systems read. A key that another key interpolates counts as read if the other key is read.
tests/unit/runner/test_effects.py varies each key under each executor and compares the results with these entries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from suite.config.executor import SimulatedExecutor
from suite.config.locate import TARGET
from suite.config.optimizer import OWN_KEYS
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.values import Json, leaves
from suite.runner.keys_read import BOOKKEEPING, CHOICES, DECLARED, OF_ENGINE, RANKS, SBATCH, SRUN, Keys, below, reads
from suite.schedule.placement import is_split
from suite.simulate.executor import by_layers
from suite.workload import Transformer

# -- keys that a run reads under a condition -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Condition:
    """Keys that a run does not read under a condition.

    Attributes:
        keys: The keys.
        idle: Whether nothing reads the keys under a configuration.
        why: Reason for the message.
        legal: Override under which the keys are read.
    """

    keys: Sequence[str]
    idle: Callable[[RunConfig], bool]
    why: str
    legal: str | Callable[[RunConfig], str]


def _ranks(config: RunConfig) -> int:
    return config.executor.ranks or config.grid.build().size


def _pruned(config: RunConfig) -> str:
    """Override that enables pruning. Ranks need a compressed memory layout for it."""
    compressed = not config.executor.starts_ranks or str(config.memory.name).startswith(("samo", "sparse"))
    return "pruning=magnitude" if compressed else "pruning=magnitude memory=samo"


CONDITIONS = (
    Condition(
        ("pruning.sparsity", "pruning.scope"),
        lambda config: not config.pruning.ticket,
        "nothing is pruned with pruning.ticket=null",
        _pruned,
    ),
    Condition(
        ("precision.loss_scale",),
        lambda config: not config.precision.half,
        "full precision has no loss scale",
        "precision=fp16",
    ),
    Condition(
        ("checkpoint.every", "checkpoint.keep"),
        lambda config: config.checkpoint.folder is None,
        "no checkpoint is written with checkpoint.folder=null",
        "checkpoint.folder=FOLDER",
    ),
    Condition(
        ("measure.validate",),
        lambda config: not config.measure.eval_batches,
        "nothing is validated with measure.eval_batches=0",
        "measure.eval_batches=2",
    ),
    Condition(
        ("executor.prediction", "executor.copy"),
        lambda config: config.update_interval is None,
        "a pipeline that drains for each update predicts and copies no weights",
        "update_interval=1",
    ),
    Condition(
        ("executor.ticks.weight",),
        lambda config: not is_split(config.schedule.build()),
        "a whole backward pass includes the weight gradient, and this schedule splits none",
        "system=zb_h1",
    ),
    Condition(
        SRUN,
        lambda config: config.launch.launcher != "srun" and not config.launch.submit,
        "only srun and a scheduler read this placement of ranks",
        "launch.launcher=srun",
    ),
    Condition(
        ("launch.mpiexec",),
        lambda config: config.launch.launcher != "mpiexec",
        "another launcher starts the ranks",
        "launch.launcher=mpiexec",
    ),
    Condition(
        ("split",),
        lambda config: config.grid.inter == 1,
        "one stage holds every layer",
        "grid.inter=2",
    ),
    Condition(
        ("comm",),
        lambda config: _ranks(config) == 1,
        "one rank sends no message",
        "grid.data=2",
    ),
)

# -- overrides to use instead ----------------------------------------------------------------------------------------

OVERRIDDEN: Mapping[str, str] = {  # by key of a run: the key of system.simulation that replaces it, and a value
    "activation_checkpointing": "activation_checkpointing=layer",
    "optimizer.bucket_numel": "bucket_numel=4000000",
}
LAYERS: Mapping[
    str, tuple[str, str]
] = {  # why simulated GPT blocks do not read a key, and overrides under which layers do
    "memory": ("the simulated system has its own layout", ""),
    "optimizer": ("blocks of a GPT are modelled with Adam", ""),
    "precision": ("blocks of a GPT are modelled in half precision", ""),
    "weights": ("blocks of a GPT drain after every batch", " update_interval=1 model.shape.tied=false"),
}
GRAPH_GROUPS = ("graph", "partitioner", "exchange")
PIECES = tuple(f"optimizer.{name}" for name in OWN_KEYS)


def _simulated(key: str, config: RunConfig, executor: SimulatedExecutor) -> tuple[str, str] | None:
    """Like `_instead`, for a key that a simulated system replaces or that only simulated layers read."""
    if executor.plan == "search" and below(key, reads(config.changed({"executor.plan": "given"})) or ()):
        return "the search chooses it", "executor.plan=given"
    for prefix, setting in OVERRIDDEN.items():
        own_key = f"system.simulation.{setting}"
        if below(key, [prefix]) and below(own_key.partition("=")[0], reads(config) or ()):
            return "the simulated system has its own", f"leave out {key} and set {own_key}"
    for prefix, (why, further) in LAYERS.items():
        layered = config.changed({"executor.account": "layers"})
        read = reads(layered) or frozenset()
        if below(key, [prefix]) and (below(key, read) or any(below(name, [key]) for name in read)):
            return why, f"executor.account=layers{further}"
    return None


def _instead(key: str, config: RunConfig) -> tuple[str, str]:
    """Why a run does not read `key`, and the override to use instead."""
    executor, kind, system = config.executor, config.executor.kind, config.system.name
    subject = f"executor={executor.name or kind}" if kind != "real" else f"system={system}"
    why, legal = f"{subject} does not read it", ""
    if isinstance(executor, SimulatedExecutor) and below(key, ["system.simulation"]):
        if by_layers(config, executor.account):
            return "layers are modelled with the config's memory, weights and checkpoints", "executor.account=blocks"
        return "the config says what is pruned", f"leave out {key} and set pruning=magnitude pruning.sparsity=0.9"
    if below(key, ["weights"]) and kind in ("check", "emulated"):
        return f"{subject} reads a weight policy where a pipeline does not drain", "update_interval=1"
    if isinstance(executor, SimulatedExecutor) and (own_key := _simulated(key, config, executor)):
        return f"{why}: {own_key[0]}", own_key[1]
    if below(key, ["draw"]):
        return "suite draw reads it, a run does not", f"suite draw {key}=..."
    if below(key, ["machine", "efficiency", "system.simulation"]):
        legal = "executor=simulated"
    elif below(key, GRAPH_GROUPS):
        legal = "executor=full_graph" if config.system.graphs else "system=sparsity_aware executor=full_graph"
    elif below(key, [*OF_ENGINE, *RANKS]) or any(below(name, [key]) for name in OF_ENGINE):
        legal = "system=axonn" if kind == "real" or config.system.graphs else "executor=real"
    elif below(key, SBATCH):
        return "only a job of a scheduler has it", "launch=slurm"
    return why, legal


# -- keys of an override ---------------------------------------------------------------------------------------------

_REFERENCE = re.compile(r"\$\{(?:[\w.]+:)?([^{}]*)\}")


def keys_of(override: str, groups: Sequence[str], written: Any) -> list[str]:
    """The dotted keys that an override sets: one key, or each key of a mapping.

    Args:
        override: The override.
        groups: Names of config groups.
        written: Parsed value of the override.
    """
    key, _, value = override.lstrip("+~").partition("=")
    group, _, package = key.partition("@")
    if package:
        return [package]
    key = group.replace("/", ".")
    if key in groups and "{" not in value:
        return [key]
    if isinstance(written, Mapping) and TARGET not in map(str, written):
        return [leaf for leaf, _ in leaves(written, key)]
    return [key]


def in_typed_keys(text: str, unresolved: Mapping[str, Json]) -> str:
    """Replace keys that interpolate a group by the keys of the group: executor.machine.* becomes machine.*."""
    for key, value in leaves(unresolved):
        reference = re.fullmatch(r"\$\{(\w+)\}", value) if isinstance(value, str) else None
        if reference and isinstance(unresolved.get(reference[1]), Mapping):
            text = re.sub(rf"(?<![\w.]){re.escape(key)}(?=\.)", reference[1], text)
    return text


def referring(unresolved: Mapping[str, Json]) -> dict[str, set[str]]:
    """For each key of an unresolved configuration, the keys that interpolate it."""
    references: dict[str, set[str]] = {}
    for key, value in leaves(unresolved):
        for text in _REFERENCE.findall(value) if isinstance(value, str) else ():
            for name in re.findall(r"[A-Za-z_]\w*(?:\.\w+)*", text):
                references.setdefault(name, set()).add(key)
    return references


class KeyEffects:
    """Keys of one configuration that its run reads.

    `composed` and `unresolved` are its keys as plain data, with interpolations resolved and as written.
    """

    def __init__(self, config: RunConfig, composed: Mapping[str, Json], unresolved: Mapping[str, Json]) -> None:
        self.config = config
        self.reads = reads(config)
        self.leaves = [key for key, _ in leaves(composed)]
        self.users = referring(unresolved)

    def refusal(self, override: str, groups: Sequence[str], written: Any) -> InvalidRequest | None:
        """The refusal of an override that changes nothing; None if the run reads every key that it sets."""
        for key in keys_of(override, groups, written):
            if (reason := self.idle(key)) is not None:
                why, legal = reason
                return Unsupported(override, rule=why, legal=legal)
        return None

    def idle(self, key: str, seen: Keys = frozenset()) -> tuple[str, str] | None:
        """Why nothing reads `key`, and the override to use instead; None for a key that is read or bookkeeping."""
        if self.reads is None or key in CHOICES or below(key, [*BOOKKEEPING, *DECLARED]):
            return None
        if f"{key}.name" in self.reads:
            return None
        if below(key, ["schedule"]) and self.config.system.brings_order:
            return None  # suite.config.rules refuses an order other than the system's
        apart = [*BOOKKEEPING, *(PIECES if key == "optimizer" else ())]  # a choice of the group sets only the rule
        within = [leaf for leaf in self.leaves if below(leaf, [key]) and not below(leaf, apart)] or [key]
        read = [leaf for leaf in within if below(leaf, self.reads)]
        for condition in CONDITIONS:
            if read and all(below(leaf, condition.keys) for leaf in read) and condition.idle(self.config):
                legal = condition.legal
                return condition.why, legal if isinstance(legal, str) else legal(self.config)
        if read or (within == [key] and any(below(name, [key]) for name in self.reads)):
            return None
        users = {user for name in within for user in self._users(name)} - {*within, *seen}
        if any(self.idle(user, seen | {*within, user}) is None for user in users if not below(user, [*BOOKKEEPING])):
            return None
        return self._of_blocks(key) or _instead(key, self.config)

    def _of_blocks(self, key: str) -> tuple[str, str] | None:
        """Like `_instead`, for update keys that only the simulation of blocks reads, not that of layers."""
        config = self.config
        if not isinstance(config.executor, SimulatedExecutor) or not below(key, ["optimizer.buckets_per_reduction"]):
            return None
        if not by_layers(config, config.executor.account):
            return None
        why = "layers are reduced at once, and then stepped"
        blocks = config.changed({"executor.account": "blocks"})
        if config.update_interval is None and isinstance(config.model.shape.build(), Transformer):
            account = copy(self)
            account.config, account.reads = blocks, reads(blocks)
            if account.idle(key) is None:
                return why, "executor.account=blocks"
        return why, f"leave out {key}"

    def _users(self, key: str) -> set[str]:
        """The keys that interpolate `key` or a group that contains it."""
        return {user for name, users in self.users.items() if below(key, [name]) for user in users}
