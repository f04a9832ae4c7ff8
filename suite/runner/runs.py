"""Runs of a command line, each with its typed configuration or the reason why it cannot run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from suite.config import checks, validate
from suite.config.compose import Composition, compose_both, groups, key_of, parsed
from suite.config.outline import Outline
from suite.config.run import RunConfig
from suite.core.errors import Fault, InvalidRequest, SuiteError
from suite.core.grid import Grid
from suite.core.reasons import whole
from suite.core.values import Json
from suite.runner import labels, machine_memory, precision
from suite.runner.executors import registry
from suite.runner.keys_read import below
from suite.runner.override_files import read_files
from suite.runner.unread_keys import Effects, in_typed_keys


@dataclass(frozen=True)
class Run:
    """One measurement to make.

    Attributes:
        settings: Its resolved keys as plain data, which its record holds.
        outline: The keys that every record needs.
        checked: Its configuration; None where a key of it has a wrong value.
        refusal: Why it cannot run (it becomes a record).
    """

    label: str
    settings: dict[str, Json]
    command: str
    outline: Outline
    checked: RunConfig | None = None
    refusal: SuiteError | None = field(default=None, compare=False)

    @property
    def config(self) -> RunConfig:
        """The configuration of a run that was not refused for a key's value. Raises that refusal."""
        if self.checked is None:
            raise self.refusal or InvalidRequest(
                f"the configuration of {self.label}", rule="each key has a legal value"
            )
        return self.checked

    @property
    def grid(self) -> Grid:
        return self.config.grid.build()

    @property
    def ranks(self) -> int:
        """Processes that are started: one for each place of the grid, unless the executor says otherwise."""
        return self.config.executor.ranks or self.grid.size


def expand(overrides: Sequence[str], taken: Sequence[str] = ()) -> list[Run]:
    """The runs of an experiment: one per entry of `experiment.runs`, the command line's own overrides last.

    A run that cannot run is still in the list, with its refusal; an experiment that does not compose raises. `@FILE`
    stands for the overrides in a file, in an entry too. A run to which the command line gives a key that it does not
    read is made as if without it where another run reads it, and else refused. taken: keys that the caller reads.
    """
    labelled, overrides = labels.split(overrides)
    overrides = read_files(overrides)
    base = compose_both(overrides)
    checks.check_runs(base[0])
    entries = [read_files(entry) for entry in base[0]["experiment"]["runs"]] or [[]]
    chosen = [o for o in overrides if o.startswith("experiment=")]
    other_overrides = [o for o in overrides if not o.startswith("experiment=")]
    drafts = [_Draft(chosen, entry, other_overrides, taken, None if entry else base) for entry in entries]
    # a key of the command line is for the runs that read it, and is refused where there are none
    able = [draft for draft in drafts if draft.refusal is None]
    idle = [override for override in other_overrides if able and all(override in draft.idle for draft in able)]
    runs = [
        draft.without([o for o in draft.idle if o in other_overrides and o not in idle]).run(labelled)
        for draft in drafts
    ]
    return labels.distinct(list({(run.label, str(run.settings)): run for run in runs}.values()))


class _Draft:
    """A run that is still to be labelled: `entry` of an experiment, after what the command line has chosen and before
    its own overrides. idle: the refusal of each override that changes nothing in it."""

    def __init__(
        self,
        chosen: Sequence[str],
        entry: Sequence[str],
        own: Sequence[str],
        taken: Sequence[str],
        composed: Composition | None = None,
    ) -> None:
        self.chosen, self.entry, self.own, self.taken = chosen, entry, own, taken
        self.merged = _merged([*chosen, *entry, *own])
        data, self.unresolved = composed or compose_both(self.merged)
        self.frozen = freeze(data, shlex.join(["suite", "run", *self.merged]))
        self.refusal, self.idle = self.frozen.refusal, dict[str, SuiteError]()
        if isinstance(self.refusal, InvalidRequest):
            self.refusal.rephrase(partial(in_typed_keys, unresolved=self.unresolved))
        elif self.refusal is None:
            effects, known_keys = Effects(self.frozen.config, data, self.unresolved), [*groups(self.merged)]
            free_overrides = [o for o in self.merged if o not in chosen and not below(key_of(o), taken)]
            refusals = {one: effects.refusal(one, known_keys, parsed(one).value()) for one in free_overrides}
            self.idle = {one: refusal for one, refusal in refusals.items() if refusal is not None}

    def without(self, idle: Sequence[str]) -> _Draft:
        """As if the command line had not given these overrides."""
        overrides = [override for override in self.own if override not in idle]
        return _Draft(self.chosen, self.entry, overrides, self.taken) if idle else self

    def run(self, labelled: Sequence[str]) -> Run:
        """labelled: keys that the label shows, whatever they are."""
        pattern = self.unresolved["executor"].get("label")
        shown_keys = [*labelled, *map(key_of, self.idle)]
        label_suffix = labels.suffix(self.own, self.frozen.outline.system.name, pattern and str(pattern), shown_keys)
        run = replace(self.frozen, label=self.frozen.label + label_suffix)
        if not self.idle:
            return run
        # its record differs from a run without these keys
        unread = list(self.idle)
        return replace(
            run,
            settings={**run.settings, "unread": unread},
            checked=run.config.changed({"unread": unread}),
            refusal=next(iter(self.idle.values())),
        )


def freeze(data: Mapping[str, Json], command: str, suffix: str = "") -> Run:
    """A run of composed keys, with its refusal where it cannot run. `suffix` ends its label."""
    outline = checks.outline_of(data)
    settings = checks.settings_of(data)
    half = precision.resolved(settings["precision"]["half"], outline.launch.device)
    settings["precision"] = {**settings["precision"], "half": half}
    settings["experiment"] = {key: value for key, value in settings["experiment"].items() if key != "runs"}
    label, config = outline.system.name, None
    try:
        config = checks.checked_run(settings)
        label_name = config.executor.label or f"{label} {config.grid.build()}"
        label = " ".join(filter(None, (label_name, str(config.tag)))) + suffix
        check(config)
    except SuiteError as error:
        return Run(label, settings, command, outline, config, error)
    except Exception as error:  # of a user's schedule, policy, shape or executor, which is asked here
        return Run(label, settings, command, outline, config, Fault(whole(error)))
    return Run(label, settings, command, outline, config)


def check(config: RunConfig) -> None:
    """Raises InvalidRequest for a run that cannot work: by a rule between keys or of its executor, or for the memory of
    this machine."""
    validate.check(config, _executor_accepts)
    machine_memory.check(config)


def _executor_accepts(config: RunConfig) -> None:
    """The rules of the executor's own class."""
    executor = config.executor
    if not executor.starts_ranks:
        registry.without_ranks(executor).check(config)
    elif executor.kind == "full_graph":
        registry.preparation().check(config)
    elif (stand_in := registry.stand_in(executor)) is not None:
        stand_in.check(config)


def _merged(overrides: Sequence[str]) -> list[str]:
    """Each key once, the last one standing: Hydra refuses a group named twice."""
    last: dict[str, str] = {}
    for override in overrides:
        key = override.partition("=")[0]
        last.pop(key, None)
        last[key] = override
    return list(last.values())
