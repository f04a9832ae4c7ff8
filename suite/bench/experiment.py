"""Decides what will run: composes configs with Hydra, freezes them, and refuses here what cannot run.

The only reader of Hydra. Everything after it, ranks included, sees plain frozen data.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from suite.bench import kinds, precision, refuse
from suite.bench.parts import check_parts
from suite.bench.store import RERUN
from suite.core.build import search
from suite.core.errors import Refused, SuiteError, UnknownName
from suite.core.grid import Grid

CONF = Path(__file__).resolve().parents[2] / "conf"
ON_ERROR = ("record", "stop")
TYPED = ("launch.mpiexec", "launch.python_path", "launch.setup", "launch.extra")  # they say what is run
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
    check_names(overrides)
    search(own_folders(overrides))  # a schedule is checked here before any rank starts
    with _hydra():
        try:
            composed = compose("config", overrides=[*overrides, *searched(overrides)])
            return plain(composed)
        except (HydraException, OmegaConfBaseException, ValueError, TypeError) as error:  # of Hydra's own, too
            raise explained(error, overrides) from error


def well_formed(overrides: Sequence[str], also: Mapping[str, kinds.Kind] | None = None) -> dict[str, Any]:
    """As resolve; raises Refused too for the first key, of a run's and of `also`, that has a value of no use."""
    config = resolve(overrides)
    kinds.check_needed(config)
    kinds.check_kinds(config)
    kinds.check_each(config, also or {})
    check_parts(config)
    return config


def plain(config: DictConfig) -> dict[str, Any]:
    """Resolved plain data, without Hydra's own part."""
    data = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
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
        try:
            parsed = OverridesParser.create().parse_override(override)
        except HydraException as error:
            raise Refused(" ".join(str(error).split())) from error
        if parsed.is_sweep_override():
            raise Refused(override, rule=f"a sweep has one {key}", legal=f"{key}={default}")
        value = parsed.value()
    return value


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


def expand(overrides: Sequence[str]) -> list[Run]:
    """The runs of an experiment: one per entry of `experiment.runs`, the command line's own overrides last.

    A run that cannot run is still in the list, with its refusal; an experiment that does not compose raises. `@FILE`
    stands for the overrides in a file, in an entry too.
    """
    overrides = read_files(overrides)
    base = resolve(overrides)
    kinds.check_runs(base)
    for key, known in (("rerun", RERUN), ("on_error", ON_ERROR)):
        if base[key] not in known:
            raise UnknownName(key, str(base[key]), known)
    entries = [read_files(entry) for entry in base["experiment"]["runs"]] or [[]]
    chosen = [o for o in overrides if o.startswith("experiment=")]
    own = [o for o in overrides if not o.startswith("experiment=")]
    runs: list[Run] = []
    for entry in entries:
        merged = _merged([*chosen, *entry, *own])
        config = resolve(merged) if entry else base
        runs.append(freeze(config, shlex.join(["python", "-m", "suite", *merged]), _told(own)))
    return list({(run.label, str(run.config)): run for run in runs}.values())


def read_files(overrides: Sequence[str]) -> list[str]:
    """The overrides, with the list that a YAML file holds (suite.tune writes one) for each `@FILE`. Raises Refused."""
    found: list[str] = []
    for override in overrides:
        if not override.startswith("@"):
            found.append(override)
            continue
        try:
            values = yaml.safe_load(Path(override[1:]).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
            raise Refused(
                f"{override}: {' '.join(str(error).split())}", rule="@FILE is a YAML list of overrides"
            ) from error
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise Refused(
                f"{override} holds no list of text", rule="@FILE is a YAML list of overrides", legal="- grid.inter=2"
            )
        for value in values:
            if _chooses_code(value):
                raise Refused(
                    f"{override} holds {value}",
                    rule="a file chooses no program and no code: that is typed",
                    legal=f"@FILE {value.partition('=')[0]}=...",
                )
        found += values
    return found


def _chooses_code(override: str) -> bool:
    """Whether an override says what is run: other people's files of overrides may be anything."""
    key, _, value = override.strip().lstrip("+~").partition("=")
    return key.startswith((*TYPED, "hydra")) or (key == "launch" and "{" in value)


def _told(overrides: Sequence[str]) -> str:
    """The command line's own choices that a system and a grid do not tell, for the label of a run."""
    silent = (
        *("system", "grid", "reports", "measure", "launch", "scale", "draw", "tag", "tune", "resume"),
        *("rerun", "on_error"),
    )
    loud = ("launch.threads", "launch.binding", "launch.starter", "launch.device")  # a time depends on them

    def told(override: str) -> bool:
        key = override.lstrip("+").partition("=")[0]
        return key in loud or key.partition(".")[0] not in silent

    return "".join(f" {override.lstrip('+')}" for override in overrides if told(override))


def freeze(config: dict[str, Any], command: str, suffix: str = "") -> Run:
    """A run of a resolved config, with its refusal where it cannot run. `suffix` ends its label."""
    kinds.check_needed(config)
    # machine and stack: the executors that simulate hold their own copy
    spare = ("draw", "machine", "stack", "tune", *(() if config["executor"].get("graphs") else GRAPHS))
    config = {key: value for key, value in config.items() if key not in spare}
    config["precision"] = precision.resolved(config["precision"], config["launch"]["device"])
    config["experiment"] = {key: value for key, value in config["experiment"].items() if key != "runs"}
    label = config["system"]["name"]
    try:
        kinds.check_kinds(config)
        grid = Grid(**config["grid"])
        named = config["executor"].get("label") or f"{label} {grid}"
        label = " ".join(filter(None, (str(named), str(config["tag"])))) + suffix
        refuse.check(config)
    except SuiteError as error:
        return Run(label, config, command, error)
    return Run(label, config, command)


def _merged(overrides: Sequence[str]) -> list[str]:
    """Each key once, the last one standing: Hydra refuses a group named twice."""
    last: dict[str, str] = {}
    for override in overrides:
        key = override.partition("=")[0]
        last.pop(key, None)
        last[key] = override
    return list(last.values())
