"""Composition of configurations with Hydra.

No other module reads Hydra. The rest of the suite, ranks included, sees typed models.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from suite.config import checks
from suite.config.defaults import defaults
from suite.config.locate import TARGET, search
from suite.config.places import OF_RANKS, check_parts
from suite.config.plugins import argument_names
from suite.config.refusals import every_key, legal_value, of_other_kind
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, SuiteError, UnknownName
from suite.core.resources import conf_folder
from suite.core.values import format_typed

CONF = conf_folder()
CHOICES = "choices"  # interpolations read the choice of each group here: ${choices.schedule}
_GROUPS = frozenset(folder.name for folder in CONF.iterdir() if folder.is_dir())


def key_of(override: str) -> str:
    """The key or group that an override gives."""
    return override.lstrip("+~").partition("=")[0]


def _per_replica(size: int, replicas: int) -> int:
    return max(1, size // max(1, replicas))


@cache
def _simulated_system(choice: str) -> dict[str, Any]:
    """A system as simulators build it, for executors that compare several systems. Independent of the key `system`."""
    config = resolve([f"system={choice}"])
    return config.system.modelled(config.schedule.data())


def register() -> None:
    """Register the models' defaults, over which Hydra merges conf/config.yaml, and the resolvers for configs."""
    ConfigStore.instance().store(name="model_defaults", node=dict(defaults()))
    OmegaConf.register_new_resolver("per_replica", _per_replica, replace=True)
    OmegaConf.register_new_resolver("simulated_system", _simulated_system, replace=True)


class _ParsedOnce:
    """Hydra's reader of YAML files, which parses each file of conf/ once per process.

    A copy is unpickled for every composition, because Hydra merges into what it reads. Files of a user's own folders
    may change, and are parsed again.
    """

    _parsed: ClassVar[dict[str, bytes]] = {}

    def __init__(self, repository: Any) -> None:
        self._repository = repository

    def __deepcopy__(self, memo: object) -> _ParsedOnce:
        return _ParsedOnce(self._repository)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._repository, name)

    def load_config(self, config_path: str) -> Any:
        if config_path not in self._parsed:
            try:
                result = self._repository.load_config(config_path=config_path)
            except (OSError, ValueError, YAMLError) as error:
                raise InvalidRequest(f"{config_path}.yaml: {error}", rule="a YAML file of keys and values") from error
            if result is None or result.provider not in ("main", "schema"):
                return result
            self._parsed[config_path] = pickle.dumps(result)
        return pickle.loads(self._parsed[config_path])


@cache
def _loader(folders: tuple[str, ...]) -> ConfigLoaderImpl:
    """Hydra's composer over conf/ and the user's folders. Hydra's public `compose` creates one for each call."""
    register()
    version.setbase("1.3")
    Plugins.instance()  # registers the readers of files
    path = ConfigSearchPathImpl()
    path.append("main", f"file://{CONF}")
    for folder in folders:
        path.append("launch.python_path", f"file://{folder}")
    path.append("schema", "structured://")
    loader = ConfigLoaderImpl(path)
    loader.repository = _ParsedOnce(loader.repository)  # type: ignore[assignment]
    return loader


def _load(overrides: Sequence[str], folders: tuple[str, ...]) -> DictConfig:
    """Merge the chosen YAML files and apply the overrides."""
    loader = _loader(folders)
    parsed_overrides, repository = loader._parse_overrides_and_create_caching_repo("config", list(overrides))
    chosen = create_defaults_list(repository, "config", parsed_overrides, prepend_hydra=False, skip_missing=False)
    config = loader._compose_config_from_defaults_list(chosen.defaults, repository)
    config[CHOICES] = chosen.overrides.known_choices
    OmegaConf.set_struct(config, True)
    loader._apply_overrides_to_config(chosen.config_overrides, config)
    return config


@cache
def _chosen(choices: tuple[str, ...]) -> bytes:
    """The pickled composition of these choices, without values of single keys."""
    return pickle.dumps(_load(choices, ()))


def _compose(overrides: Sequence[str]) -> DictConfig:
    """Compose the overrides as Hydra does: first the chosen files, then the values of single keys."""
    parsed_overrides = OverridesParser.create().parse_overrides(list(overrides))
    ConfigLoaderImpl.validate_sweep_overrides_legal(parsed_overrides, run_mode=RunMode.RUN, from_shell=False)
    if folders := tuple(map(str, own_folders(overrides))):
        return _load(overrides, folders)
    choices = tuple(text for text, parsed in zip(overrides, parsed_overrides, strict=True) if not _is_value(parsed))
    config: DictConfig = pickle.loads(_chosen(choices))
    ConfigLoaderImpl._apply_overrides_to_config([each for each in parsed_overrides if _is_value(each)], config)
    return config


def _is_value(override: Override) -> bool:
    return override.package is None and override.key_or_group not in _GROUPS


class Composition(NamedTuple):
    """Composed keys as plain data: once with resolved interpolations, and once as written."""

    resolved: dict[str, Any]
    unresolved: dict[str, Any]


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose the overrides. Returns the resolved keys as plain data, whose values are not checked.

    Raises UnknownName with the nearest match, and InvalidRequest for any other error in the overrides.
    """
    return compose_both(overrides).resolved


def compose_both(overrides: Sequence[str]) -> Composition:
    """Compose the overrides, with and without resolved interpolations. Raises as `composed` does."""
    check_names(overrides)
    search(own_folders(overrides))  # a schedule is checked here before any rank starts
    try:
        composed = _compose(overrides)
        if any(override.startswith("~") for override in overrides):  # a deleted key takes its default
            composed = OmegaConf.merge(OmegaConf.create(dict(defaults())), composed)  # type: ignore[assignment]
        return Composition(plain(composed), plain(composed, resolved=False))
    except (HydraException, OmegaConfBaseException, ValueError, TypeError) as error:  # of Hydra's own, too
        raise explained(error, overrides) from error


def resolve(overrides: Sequence[str]) -> RunConfig:
    """The checked configuration of these overrides. Raises as `composed` does, and for the first illegal value."""
    config = checks.checked_run(composed(overrides))
    check_parts(config)
    return config


def plain(config: DictConfig, resolved: bool = True) -> dict[str, Any]:
    """Plain data, with interpolations resolved or as they are written."""
    data = OmegaConf.to_container(config, resolve=resolved, throw_on_missing=resolved)
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items() if key != CHOICES}


def groups(overrides: Sequence[str] = ()) -> dict[str, list[str]]:
    """The config groups and their choices, including those in the folders of the command line."""
    folders = {folder.name: _choices(folder) for folder in CONF.iterdir() if folder.is_dir()}
    for own_folder in own_folders(overrides):
        for group, names in folders.items():
            more = _choices(own_folder / group)
            if twice := set(more) & set(names):  # Hydra would silently take the first
                name = min(twice)
                legal = f"{group}={name}_of_mine"
                raise InvalidRequest(
                    f"{own_folder / group / name}.yaml", rule=f"there is a {group}={name} already", legal=legal
                )
            names.extend(more)
    return folders


def _choices(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.yaml"))


def own_folders(overrides: Sequence[str]) -> list[Path]:
    """The folders of `launch.python_path`. They hold modules, and YAML files in folders named like the folders of
    conf/. Raises InvalidRequest.
    """
    folders: list[Any] = []
    for override in overrides:
        if override.partition("=")[0] == "launch.python_path":
            try:
                value = OverridesParser.create().parse_override(override).value()
            except HydraException:
                continue  # the composition reports the error in one line
            folders = value if isinstance(value, list) else [value]
    for name in folders:
        if not Path(str(name)).is_dir():
            raise InvalidRequest(
                f"launch.python_path={folders}: no folder {name}", rule="a list of folders", legal="[FOLDER]"
            )
    return [Path(str(name)).resolve() for name in folders]


def choices(override: str, overrides: Sequence[str]) -> list[str]:
    """The override for each of its values in a sweep over `overrides`; itself if it has no comma-separated values.

    Raises InvalidRequest for a syntax error and for a sweep without a list of values.
    """
    parser = OverridesParser.create(config_loader=_loader(tuple(map(str, own_folders(overrides)))))
    try:
        (tree,) = parser.parse_overrides([override])
    except HydraException as error:
        raise explained(error, overrides) from error
    if not tree.is_sweep_override():
        return [override]
    if not tree.is_discrete_sweep():
        key = key_of(override)
        raise InvalidRequest(override, rule="a sweep lists its values", legal=f"{key}=1,2 or {key}=range(1,3)")
    return [f"{tree.get_key_element()}={value}" for value in tree.sweep_string_iterator()]


def check_names(overrides: Sequence[str]) -> None:
    """Check that each `group=choice` names existing choices (`group=a,b` in a sweep names two)."""
    legal_groups = groups(overrides)
    for override in overrides:
        key, override_value, value = override.partition("=")
        if key_of(override).startswith(("hydra.", "hydra/")):
            raise InvalidRequest(override, rule="Hydra's own settings have no effect", legal="seed=1")
        if not override_value and not override.startswith("~"):
            info = every_key(RunConfig).get(key)
            example = _default_choice(key) or next(map(format_typed, legal_value(info) if info else ()), "VALUE")
            raise InvalidRequest(
                f"{override} without a value", rule="an override is KEY=VALUE", legal=f"{key}={example}"
            )
        if key in legal_groups and not re.search(r"[\[\]{}()$]", value):
            for choice in (part.strip("'\" ") for part in value.split(",")):
                if choice not in (*legal_groups[key], "null"):
                    raise UnknownName(key, choice, legal_groups[key], legal=repr(_default_choice(key)))


@cache
def _default_choice(group: str) -> str:
    """The default choice of a group; empty for an unknown group."""
    defaults = [each for each in OmegaConf.load(CONF / "config.yaml").defaults if isinstance(each, Mapping)]
    return next((str(each[group]) for each in defaults if group in each), "")


def explained(error: Exception, overrides: Sequence[str]) -> SuiteError:
    """The suite's error for an error of Hydra, with the nearest legal key or the broken rule."""
    if isinstance(error, OverrideParseException):
        name = error.override.partition("=")[0]
        rule = "a key and a value in Hydra's grammar, with every bracket and quote closed"
        return InvalidRequest(f"the override {error.override}", rule=rule, legal=f"{name}=VALUE")
    text = " ".join(str(error).split())
    if missing := re.search(r"Missing mandatory value: .*full_key: ([\w.]+)", text):
        what, legal = f"{missing[1]} has no value", f"{missing[1]}=VALUE"
        return InvalidRequest(what, rule="this choice requires one", legal=legal)
    if ambiguous := re.search(r"Ambiguous value for argument '([^']+)'", text):
        legal = f"suite sweep {ambiguous[1]}"
        return InvalidRequest(ambiguous[1], rule="several values are a sweep with a run each", legal=legal)
    if merged := re.match(r"Error merging override (\S+)", text):
        return InvalidRequest(merged[1], rule="keys with values of their own", legal=f"{key_of(merged[1])}.NAME=VALUE")
    if unknown := re.search(r"Could not override '([\w.]+)'", text):
        if override := next((each for each in overrides if key_of(each) == unknown[1] and unknown[1] in groups()), ""):
            return InvalidRequest(override, rule="a part of another group", legal=f"{unknown[1]}@executor.{override}")
        paths = [o for o in overrides if key_of(o) == "launch.python_path"]
        single = [o for o in overrides if o.partition("=")[0] in groups() and "," not in o]
        base = _compose([*single, *paths])
        data = plain(base, resolved=False)
        if addition := _addition(unknown[1], data, overrides):
            return addition
        keys = list(_keys(data))
        near = get_close_matches(unknown[1], keys, n=1, cutoff=0.4)
        parent = unknown[1].rpartition(".")[0]
        beside = [key for key in keys if key.rpartition(".")[0] == parent]
        legal_keys = {*near, *(beside or (key for key in keys if "." not in key))}
        return UnknownName("config key", unknown[1], legal_keys, legal="")
    return InvalidRequest(text)


def _addition(key: str, data: Any, overrides: Sequence[str]) -> InvalidRequest | None:
    """The refusal of a legal key that the chosen YAML files leave out. Hydra adds such a key only after a `+`."""
    override = next((each for each in overrides if key_of(each) == key), key)
    legal_keys = every_key(RunConfig, data=data)
    *groups, name = key.split(".")
    for group in groups:
        data = data.get(group) if isinstance(data, Mapping) else None
    path = data.get(TARGET) if isinstance(data, Mapping) and key.rpartition(".")[0] not in OF_RANKS else None
    if isinstance(path, str) and name in argument_names(path):
        return InvalidRequest(override, rule=f"{path} takes it, and the chosen YAML has no {key}", legal=f"+{override}")
    if key in legal_keys:
        return InvalidRequest(override, rule=f"the chosen YAML has no {key}: it is added", legal=f"+{override}")
    return of_other_kind(RunConfig, key, override)


def _keys(data: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield f"{prefix}{key}"
            yield from _keys(value, f"{prefix}{key}.")
