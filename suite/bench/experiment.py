"""Decides what will run: composes configs with Hydra, freezes them, and refuses here what cannot run.

The only reader of Hydra. Everything after it, ranks included, sees plain frozen data.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from suite.bench import labels, precision, refuse
from suite.bench.effects import Effects
from suite.bench.override_files import read_files
from suite.bench.parts import check_parts
from suite.bench.reads import below
from suite.bench.store import RERUN
from suite.config import checks
from suite.core.build import search
from suite.core.errors import Fault, Refused, SuiteError, UnknownName
from suite.core.grid import Grid
from suite.core.reasons import whole

CONF = Path(__file__).resolve().parents[2] / "conf"
ON_ERROR = ("record", "stop")
GRAPHS = ("graph", "partitioner", "exchange")  # groups that only runs on a whole graph read


@dataclass(frozen=True)
class Run:
    """One measurement to make. config: resolved, plain data; refusal: why it cannot run (it becomes a record)."""

    label: str
    config: dict[str, Any]
    command: str
    refusal: SuiteError | None = field(default=None, compare=False)

    @property
    def grid(self) -> Grid:
        return Grid(**self.config["grid"])

    @property
    def ranks(self) -> int:
        """Processes that are started: one for each place of the grid, unless the executor says otherwise."""
        return int(self.config["executor"].get("ranks", self.grid.size))


def _per_replica(size: int, replicas: int) -> int:
    return max(1, size // max(1, replicas))


def register() -> None:
    """The resolvers that configs may use."""
    OmegaConf.register_new_resolver("per_replica", _per_replica, replace=True)


@contextmanager
def _hydra() -> Iterator[None]:
    """Composes inside an application of Hydra's as well as outside."""
    register()
    if GlobalHydra.instance().is_initialized():
        yield
    else:
        with initialize_config_dir(str(CONF), version_base="1.3", job_name="suite"):
            yield


def resolve(overrides: Sequence[str]) -> dict[str, Any]:
    """The config of these overrides, resolved. Raises UnknownName with the nearest match, Refused for other faults."""
    return compose_both(overrides)[0]


def compose_both(overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config of these overrides, resolved, and with its interpolations. Raises as `resolve` does."""
    check_names(overrides)
    search(own_folders(overrides))  # a schedule is checked here before any rank starts
    with _hydra():
        try:
            composed = compose("config", overrides=[*overrides, *searched(overrides)])
            return plain(composed), plain(composed, resolved=False)
        except (HydraException, OmegaConfBaseException, ValueError, TypeError) as error:  # of Hydra's own, too
            raise explained(error, overrides) from error


def well_formed(overrides: Sequence[str], *, drawing: bool = False) -> dict[str, Any]:
    """As resolve; raises InvalidRequest too for the first key of a run, and of a drawing, that has a wrong value."""
    config = resolve(overrides)
    checks.check_run(config)
    if drawing:
        checks.check_drawing(config)
    check_parts(config)
    return config


def plain(config: DictConfig, resolved: bool = True) -> dict[str, Any]:
    """Plain data without Hydra's part, with interpolations resolved or as they are written."""
    data = OmegaConf.to_container(config, resolve=resolved, throw_on_missing=resolved)
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items() if key != "hydra"}


def groups(overrides: Sequence[str] = ()) -> dict[str, list[str]]:
    """The config groups and their choices, those of the command line's own folders included."""
    found = {folder.name: _choices(folder) for folder in CONF.iterdir() if folder.is_dir()}
    for own in own_folders(overrides):
        for group, names in found.items():
            more = _choices(own / group)
            if twice := set(more) & set(names):  # Hydra would take the first without a word
                name = min(twice)
                legal = f"{group}={name}_of_mine"
                raise Refused(f"{own / group / name}.yaml", rule=f"there is a {group}={name} already", legal=legal)
            names.extend(more)
    return found


def _choices(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.yaml"))


def own_folders(overrides: Sequence[str]) -> list[Path]:
    """The folders of `launch.python_path`: modules, and YAMLs in folders named as those of conf/. Raises Refused."""
    named: list[Any] = []
    for override in overrides:
        if override.partition("=")[0] == "launch.python_path":
            try:
                value = OverridesParser.create().parse_override(override).value()
            except HydraException:
                continue  # composing says so, in one line
            named = value if isinstance(value, list) else [value]
    for name in named:
        if not Path(str(name)).is_dir():
            raise Refused(f"launch.python_path={named}: no folder {name}", rule="a list of folders", legal="[FOLDER]")
    return [Path(str(name)).resolve() for name in named]


def given(key: str, overrides: Sequence[str], default: Any) -> Any:
    """The value that the command line gives `key`, unresolved. Raises Refused where it is one of a sweep."""
    value = default
    for override in overrides:
        if override.lstrip("+").partition("=")[0] != key:
            continue
        found = parsed(override)
        if found.is_sweep_override():
            raise Refused(override, rule=f"a sweep has one {key}", legal=f"{key}={default}")
        value = found.value()
    return value


def parsed(override: str) -> Override:
    """As Hydra reads it. Raises Refused."""
    try:
        return OverridesParser.create().parse_override(override)
    except HydraException as error:
        raise Refused(" ".join(str(error).split())) from error


def searched(overrides: Sequence[str]) -> list[str]:
    """What tells Hydra to look for configs in the command line's own folders too."""
    quoted = ["'file://{}'".format(str(folder).replace("'", r"\'")) for folder in own_folders(overrides)]
    return [f"hydra.searchpath=[{','.join(quoted)}]"] if quoted else []


def check_names(overrides: Sequence[str]) -> None:
    """Every `group=choice` names a choice that there is (`a,b` in a sweep names two)."""
    known = groups(overrides)
    for override in overrides:
        key, _, value = override.partition("=")
        if key in known and value and not re.search(r"[\[\]{}()$]", value):
            for choice in (part.strip("'\" ") for part in value.split(",")):
                if choice not in (*known[key], "null"):
                    raise UnknownName(key, choice, known[key])


def explained(error: Exception, overrides: Sequence[str]) -> SuiteError:
    """Hydra's message, with the nearest key where a key is unknown and the rule where a value is missing."""
    text = " ".join(str(error).split())
    missing = re.search(r"Missing mandatory value: .*full_key: ([\w.]+)", text)
    if missing:
        return Refused(f"{missing[1]} has no value", rule="this choice wants one", legal=f"{missing[1]}=...")
    unknown = re.search(r"Could not override '([\w.]+)'", text)
    if unknown:
        with _hydra():
            chosen = [o for o in overrides if o.partition("=")[0] in groups()]
            base = compose("config", overrides=[*chosen, *searched(overrides)])
        keys = list(_keys(OmegaConf.to_container(base, resolve=False)))
        near = get_close_matches(unknown[1], keys, n=1, cutoff=0.4)
        parent = unknown[1].rpartition(".")[0]
        beside = [key for key in keys if key.rpartition(".")[0] == parent]
        return UnknownName("config key", unknown[1], {*near, *(beside or (key for key in keys if "." not in key))})
    return Refused(text)


def _keys(data: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield f"{prefix}{key}"
            yield from _keys(value, f"{prefix}{key}.")


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
    for key, known in (("rerun", RERUN), ("on_error", ON_ERROR)):
        if base[0][key] not in known:
            raise UnknownName(key, str(base[0][key]), known)
    entries = [read_files(entry) for entry in base[0]["experiment"]["runs"]] or [[]]
    chosen = [o for o in overrides if o.startswith("experiment=")]
    own = [o for o in overrides if not o.startswith("experiment=")]
    drafts = [_Draft(chosen, entry, own, taken, None if entry else base) for entry in entries]
    # a key of the command line is for the runs that read it, and is refused where there are none
    able = [draft for draft in drafts if draft.refusal is None]
    idle = [override for override in own if able and all(override in draft.idle for draft in able)]
    runs = [draft.without([o for o in draft.idle if o in own and o not in idle]).run(labelled) for draft in drafts]
    return labels.distinct(list({(run.label, str(run.config)): run for run in runs}.values()))


class _Draft:
    """A run that is still to be labelled: `entry` of an experiment, after what the command line has chosen and before
    its own overrides. idle: the refusal of each override that changes nothing in it."""

    def __init__(
        self,
        chosen: Sequence[str],
        entry: Sequence[str],
        own: Sequence[str],
        taken: Sequence[str],
        composed: tuple[dict[str, Any], dict[str, Any]] | None = None,
    ) -> None:
        self.chosen, self.entry, self.own, self.taken = chosen, entry, own, taken
        self.merged = _merged([*chosen, *entry, *own])
        self.config, self.unresolved = composed or compose_both(self.merged)
        self.frozen = freeze(self.config, shlex.join(["python", "-m", "suite", *self.merged]))
        self.refusal, self.idle = self.frozen.refusal, dict[str, SuiteError]()
        if self.refusal is None:
            effects, known = Effects(self.config, self.unresolved), [*groups(self.merged)]
            given = [o for o in self.merged if o not in chosen and not below(labels.key_of(o), taken)]
            found = {one: effects.refusal(one, known, parsed(one).value()) for one in given}
            self.idle = {one: refusal for one, refusal in found.items() if refusal is not None}

    def without(self, idle: Sequence[str]) -> _Draft:
        """As if the command line had not given these overrides."""
        kept = [override for override in self.own if override not in idle]
        return _Draft(self.chosen, self.entry, kept, self.taken) if idle else self

    def run(self, labelled: Sequence[str]) -> Run:
        """labelled: keys that the label shows, whatever they are."""
        pattern = self.unresolved["executor"].get("label")
        shown = [*labelled, *map(labels.key_of, self.idle)]
        told = labels.suffix(self.own, self.config, pattern and str(pattern), shown)
        run = replace(self.frozen, label=self.frozen.label + told)
        if not self.idle:
            return run
        # its record is not that of a run to which the keys were not given
        config = {**run.config, "unread": list(self.idle)}
        return replace(run, config=config, refusal=next(iter(self.idle.values())))


def freeze(config: dict[str, Any], command: str, suffix: str = "") -> Run:
    """A run of a resolved config, with its refusal where it cannot run. `suffix` ends its label."""
    checks.check_needed(config)
    # machine and stack: the executors that simulate hold their own copy
    spare = ("draw", "machine", "stack", "tune", *(() if config["executor"].get("graphs") else GRAPHS))
    config = {key: value for key, value in config.items() if key not in spare}
    config["precision"] = precision.resolved(config["precision"], config["launch"]["device"])
    config["experiment"] = {key: value for key, value in config["experiment"].items() if key != "runs"}
    label = config["system"]["name"]
    try:
        checks.check_run(config)
        grid = Grid(**config["grid"])
        named = config["executor"].get("label") or f"{label} {grid}"
        label = " ".join(filter(None, (str(named), str(config["tag"])))) + suffix
        refuse.check(config)
    except SuiteError as error:
        return Run(label, config, command, error)
    except Exception as error:  # of a user's schedule, policy, shape or executor, which is asked here
        return Run(label, config, command, Fault(whole(error)))
    return Run(label, config, command)


def _merged(overrides: Sequence[str]) -> list[str]:
    """Each key once, the last one standing: Hydra refuses a group named twice."""
    last: dict[str, str] = {}
    for override in overrides:
        key = override.partition("=")[0]
        last.pop(key, None)
        last[key] = override
    return list(last.values())
