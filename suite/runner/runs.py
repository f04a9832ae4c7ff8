"""Runs of a command line, each with its typed configuration or the reason why it cannot run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from suite.config import rules
from suite.config.compose import Composed, combinations, compose_both
from suite.config.experiment import Experiment
from suite.config.refusals import validated
from suite.config.run import RunConfig, checked_run, settings_of
from suite.core.errors import Fault, InvalidRequest, SuiteError
from suite.core.grid import Grid
from suite.core.reasons import format_traceback
from suite.core.values import Json
from suite.runner import labels, machine_memory, precision, provenance
from suite.runner.executors import registry
from suite.runner.keys_read import unread
from suite.runner.override_files import read_files
from suite.runner.store import key_of


@dataclass(frozen=True)
class Run:
    """One measurement, before it starts.

    Attributes:
        label: Label of the run on the page.
        settings: Resolved keys as plain data, which the record holds.
        command: Command line of the run.
        config: Configuration.
        refusal: Error that keeps it from running, which its record holds; None if it can run.
    """

    label: str
    settings: dict[str, Json]
    command: str
    config: RunConfig
    refusal: SuiteError | None = field(default=None, compare=False)

    @property
    def grid(self) -> Grid:
        return self.config.grid.build()

    @property
    def ranks(self) -> int:
        """Number of processes: one per place of the grid, unless the executor sets `ranks`."""
        return self.config.executor.ranks or self.grid.size

    @cached_property
    def circumstances(self) -> dict[str, Json]:
        """Machine, versions, code and data when they are first read."""
        return provenance.circumstances(self.config)

    @cached_property
    def key(self) -> str:
        """Key of the record that this machine writes for the run."""
        return key_of(self.settings, self.circumstances)


def expand(overrides: Sequence[str]) -> list[Run]:
    """The runs of a command line: those of each line of `experiment.runs`, then the command line's own overrides.

    A run that cannot start is in the list with its refusal. If only some runs read an override of the command line, the
    others ignore it. `@FILE` stands for the overrides in a file, also in an entry.

    Raises:
        InvalidRequest: The experiment does not compose, a key has an illegal value, or an override changes nothing in
            any run.
    """
    labelled_keys, overrides = labels.split_flags(overrides)
    drafts = _drafts(overrides)
    for refusal in _unread_everywhere(drafts).values():
        raise refusal
    runs = [draft.read_only().run(labelled_keys) for draft in drafts]
    different = {(run.label, str(run.settings)): run for run in runs}
    distinct = dict(zip(different, labels.make_distinct(list(different.values())), strict=True))
    named = {
        draft.frozen.label: distinct[run.label, str(run.settings)].label
        for draft, run in zip(drafts, runs, strict=True)
    }
    return [_compared(run, named) for run in distinct.values()]


def unread_overrides(overrides: Sequence[str]) -> dict[str, SuiteError]:
    """The overrides of a command line that change nothing in any of its runs, each with its refusal."""
    return _unread_everywhere(_drafts(overrides))


def _drafts(overrides: Sequence[str]) -> list[_Draft]:
    """A draft per entry of `experiment.runs`. Raises InvalidRequest for an experiment that does not compose."""
    overrides = read_files(overrides)
    base = compose_both(overrides)
    runs = validated(Experiment, base[0].get("experiment"), "experiment").runs
    entries = [entry for line in runs for entry in combinations(read_files(shlex.split(line)))] or [[]]
    experiment = [o for o in overrides if o.startswith("experiment=")]
    other_overrides = [o for o in overrides if not o.startswith("experiment=")]
    return [_Draft(experiment, entry, other_overrides, None if entry else base) for entry in entries]


def _unread_everywhere(drafts: Sequence[_Draft]) -> dict[str, SuiteError]:
    """Refusals of overrides that no run reads, and of overrides of an entry that its run does not read."""
    possible = [draft for draft in drafts if draft.refusal is None]
    return {
        override: refusal
        for draft in possible
        for override, refusal in draft.unread.items()
        if override not in draft.own or all(override in other.unread for other in possible)
    }


def _compared(run: Run, named: Mapping[str, str]) -> Run:
    """The run, whose experiment compares runs by their labels in this command.

    An experiment names the runs of its own entries. `named` has the label of each here, where overrides end it."""
    experiment: Any = run.settings["experiment"]
    compared = {key: _renamed(experiment[key], named) for key in ("reference", "expect") if key in experiment}
    return replace(run, settings={**run.settings, "experiment": {**experiment, **compared}})


def _renamed(value: Json, named: Mapping[str, str]) -> Json:
    """The value with the labels in it, at any depth, replaced."""
    if isinstance(value, list):
        return [_renamed(each, named) for each in value]
    if isinstance(value, dict):
        return {key: _renamed(each, named) if key in ("system", "versus") else each for key, each in value.items()}
    return named.get(value, value) if isinstance(value, str) else value


class _Draft:
    """A run without its final label.

    Attributes:
        experiment: Override that selects the experiment, if there is one.
        entry: Overrides of an entry of the experiment.
        own: Other overrides of the command line, which come last.
        unread: Refusal of each override that changes nothing in the run.
    """

    def __init__(
        self,
        experiment: Sequence[str],
        entry: Sequence[str],
        own: Sequence[str],
        composed: Composed | None = None,
    ) -> None:
        self.experiment, self.entry, self.own = experiment, entry, own
        merged = _merge([*experiment, *entry, *own])
        data, self.unresolved = composed or compose_both(merged)
        self.unread = dict[str, SuiteError]()
        try:
            self.frozen = freeze(data, shlex.join(["suite", "run", *merged]))
        except InvalidRequest as error:
            error.rephrase(self._in_typed_keys)
            raise
        self.refusal = self.frozen.refusal
        if isinstance(self.refusal, InvalidRequest):
            self.refusal.rephrase(self._in_typed_keys)
        elif self.refusal is None:
            refusals = {override: unread(override, self.frozen.config, self.unresolved) for override in merged}
            self.unread = {override: refusal for override, refusal in refusals.items() if refusal is not None}

    def _in_typed_keys(self, text: str) -> str:
        """A message with the keys of groups that the executor interpolates: executor.machine.* becomes machine.*."""
        for name in ("machine", "efficiency"):
            if self.unresolved["executor"].get(name) == f"${{{name}}}":
                text = text.replace(f"executor.{name}.", f"{name}.")
        return text

    def read_only(self) -> _Draft:
        """The draft without the overrides of the command line that its run does not read."""
        overrides = [override for override in self.own if override not in self.unread]
        return _Draft(self.experiment, self.entry, overrides) if self.unread else self

    def run(self, labelled_keys: Sequence[str]) -> Run:
        """The run, whose label shows `labelled_keys` in any case."""
        name, pattern = self.unresolved["system"]["name"], self.unresolved["executor"].get("label")
        system = self.frozen.config.system.name
        suffix = labels.suffix(self.own, system, str(name), pattern and str(pattern), labelled_keys)
        return replace(self.frozen, label=self.frozen.label + suffix)


def freeze(data: Mapping[str, Json], command: str, suffix: str = "") -> Run:
    """The run of composed keys, with a refusal if a rule between keys or of a class keeps it from running.

    Args:
        data: Composed keys as plain data.
        command: Command line for the record.
        suffix: End of the label.

    Raises:
        InvalidRequest: A key is missing, unknown or has an illegal value.
    """
    composed_config, settings = checked_run(data), settings_of(data)
    half = precision.resolve_half(composed_config.precision.half, composed_config.launch.device)
    settings["precision"] = {**settings["precision"], "half": half}
    settings["experiment"] = {key: value for key, value in settings["experiment"].items() if key != "runs"}
    config = RunConfig.model_validate(settings)
    label = config.system.name
    try:
        label_name = config.executor.label or f"{label} {config.grid.build()}"
        label = " ".join(filter(None, (label_name, str(config.tag)))) + suffix
        validate_run(config)
    except SuiteError as error:
        return Run(label, settings, command, config, error)
    except Exception as error:  # raised by a user's schedule, policy, shape or executor
        return Run(label, settings, command, config, Fault(format_traceback(error)))
    return Run(label, settings, command, config)


def validate_run(config: RunConfig) -> None:
    """Raises InvalidRequest for a run that violates a rule between keys or of its executor, or exceeds the memory."""
    rules.check(config, _check_executor)
    machine_memory.check_memory(config)


def _check_executor(config: RunConfig) -> None:
    """Check the rules of the executor's class."""
    executor = config.executor
    if not executor.starts_ranks:
        registry.without_ranks(executor).check(config)
    elif executor.kind == "full_graph":
        from suite.gnn.partition_data import Prepared  # needs scipy

        Prepared.check(config)
    elif (stub := registry.rank_stub(executor)) is not None:
        stub.check(config)


def _merge(overrides: Sequence[str]) -> list[str]:
    """The last override of each key. Hydra refuses a group that is named twice."""
    last: dict[str, str] = {}
    for override in overrides:
        key = override.partition("=")[0]
        last.pop(key, None)
        last[key] = override
    return list(last.values())
