"""Composition of configurations with Hydra.

No other module reads Hydra. The rest of the suite, ranks included, sees typed models.
"""

from __future__ import annotations

import itertools
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from suite.config.defaults import defaults
from suite.config.families import CONF, choices_in, family_members, groups
from suite.config.locate import TARGET, search
from suite.config.places import OF_RANKS, check_parts
from suite.config.plugins import argument_names
from suite.config.refusals import every_key, of_other_kind
from suite.config.run import RunConfig, checked_run
from suite.core.errors import InvalidRequest, SuiteError, UnknownName
from suite.core.values import leaves

CHOICES = "choices"  # interpolations read the choice of each group here: ${choices.schedule}
_GROUPS = frozenset(folder.name for folder in CONF.iterdir() if folder.is_dir())
FOLDERS = "launch.python_path"
Composed = tuple[dict[str, Any], dict[str, Any]]  # keys with resolved interpolations, and as they are written


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


def _formula_runs() -> list[str]:
    """Runs of the experiment `formulas`: one per paper with a claim that a formula answers."""
    from suite.claims import load  # no other command reads claims to compose

    return [f"executor.paper={paper}" for paper in load.papers_answering("formulas")]


def register() -> None:
    """Register the models' defaults, over which Hydra merges conf/config.yaml, the names in families, and resolvers.

    The reader stores the keys of a member of a family when the member is chosen."""
    store = ConfigStore.instance()
    store.store(name="model_defaults", node=dict(defaults()))
    for group in _GROUPS:
        for name in family_members(CONF / group):
            store.store(name, {}, group)
    OmegaConf.register_new_resolver("per_replica", _per_replica, replace=True)
    OmegaConf.register_new_resolver("simulated_system", _simulated_system, replace=True)
    OmegaConf.register_new_resolver("formula_runs", _formula_runs, replace=True)


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
            group, _, name = config_path.rpartition("/")
            if member := family_members(CONF / group).get(name):
                package = "_global_" if member.is_global else None
                ConfigStore.instance().store(name, dict(member.keys), group, package, provider="main")
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
    for folder in map(Path, folders):
        path.append("launch.python_path", f"file://{folder}")
        for group, names in groups().items():
            if twice := {*names} & {*choices_in(folder / group)}:  # Hydra would silently take the first
                name = min(twice)
                rule = f"there is a {group}={name} already"
                raise InvalidRequest(f"{folder / group / name}.yaml", rule=rule, legal=f"{group}={name}_of_mine")
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


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose the overrides. Returns the resolved keys as plain data, whose values are not checked.

    Raises UnknownName with the nearest match, and InvalidRequest for any other error in the overrides.
    """
    return compose_both(overrides)[0]


def compose_both(overrides: Sequence[str]) -> Composed:
    """The composed keys as plain data, with and without resolved interpolations. Raises as `composed` does."""
    try:
        search(own_folders(overrides))  # a schedule is checked here before any rank starts
        composed = _compose(overrides)
        if any(override.startswith("~") for override in overrides):  # a deleted key takes its default
            composed = OmegaConf.merge(OmegaConf.create(dict(defaults())), composed)  # type: ignore[assignment]
        return plain(composed), plain(composed, resolved=False)
    except (HydraException, OmegaConfBaseException, ValueError, TypeError) as error:  # of Hydra's own, too
        raise explained(error, overrides) from error


def resolve(overrides: Sequence[str]) -> RunConfig:
    """The checked configuration of these overrides. Raises as `composed` does, and for the first illegal value."""
    config = checked_run(composed(overrides))
    check_parts(config)
    return config


def plain(config: DictConfig, resolved: bool = True) -> dict[str, Any]:
    """Plain data, with interpolations resolved or as they are written."""
    data = OmegaConf.to_container(config, resolve=resolved, throw_on_missing=resolved)
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items() if key != CHOICES}


def own_folders(overrides: Sequence[str]) -> list[Path]:
    """The folders of `launch.python_path`. They hold modules, and YAML files in folders named like the folders of
    conf/. Raises InvalidRequest.
    """
    folders: list[Any] = []
    for override in overrides:
        if override.partition("=")[0] == FOLDERS:
            value = OverridesParser.create().parse_override(override).value()
            folders = value if isinstance(value, list) else [value]
    if absent := [name for name in folders if not Path(str(name)).is_dir()]:
        raise InvalidRequest(FOLDERS, folders, f"there is no folder {absent[0]}", "[FOLDER]")
    return [Path(str(name)).resolve() for name in folders]


def choices(override: str, overrides: Sequence[str]) -> list[str]:
    """The override for each of its values in a sweep over `overrides`; itself if it has no comma-separated values.

    Raises InvalidRequest for a syntax error, and for a sweep without a list of values.
    """
    if not re.search("[,(]", override):
        return [override]
    try:
        parser = OverridesParser.create(config_loader=_loader(tuple(map(str, own_folders(overrides)))))
        (tree,) = parser.parse_overrides([override])
    except HydraException as error:
        raise explained(error, overrides) from error
    if not tree.is_sweep_override():
        return [override]
    if not tree.is_discrete_sweep():
        raise InvalidRequest(override, rule="a sweep lists its values", legal=f"{key_of(override)}=1,2")
    return [f"{tree.get_key_element()}={value}" for value in tree.sweep_string_iterator()]


def combinations(words: Sequence[str]) -> Iterator[list[str]]:
    """The command line of each combination of comma-separated values; `{KEY}` stands for the value of KEY in it.

    `seed=0,1 tag='seed {seed}'` are two lines, with the tags `seed 0` and `seed 1`. Raises as `choices` does.
    """
    for line in itertools.product(*(choices(word, words) for word in words)):
        values = {key_of(word): word.partition("=")[2] for word in line}
        yield [_KEY.sub(partial(_value_of, values), word) for word in line]


_KEY = re.compile(r"(?<!\$)\{([\w.]+)\}")


def _value_of(values: Mapping[str, str], key: re.Match[str]) -> str:
    return values.get(key[1], key[0])


_REFUSALS = (  # pattern of a message of Hydra's with the setting, its rule, and advice for this setting and its key
    (r"Missing mandatory value: .*full_key: ([\w.]+)", "this choice requires a value", "{key}=VALUE"),
    (r"Ambiguous value for argument '([^']+)'", "several values are a sweep with a run each", "suite sweep {setting}"),
    (r"^Error merging override (\S+)", "keys with values of their own", "{key}.NAME=VALUE"),
)


def explained(error: Exception, overrides: Sequence[str]) -> SuiteError:
    """The suite's error for an error of Hydra, with the nearest legal key or the broken rule."""
    if isinstance(error, OverrideParseException):
        name = error.override.partition("=")[0]
        rule = "a key and a value in Hydra's grammar, with every bracket and quote closed"
        return InvalidRequest(f"the override {error.override}", rule=rule, legal=f"{name}=VALUE")
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        return UnknownName(group, choice, [name for name in error.options if not name.startswith("_")])
    text = " ".join(str(error).split())
    for pattern, rule, legal in _REFUSALS:
        if match := re.search(pattern, text):
            return InvalidRequest(match[1], rule=rule, legal=legal.format(setting=match[1], key=key_of(match[1])))
    if unknown := re.search(r"Could not override '([\w.]+)'", text):
        return _unknown_key(unknown[1], overrides)
    return InvalidRequest(text, rule="YAML files of keys and values, and overrides of these keys")


def _unknown_key(key: str, overrides: Sequence[str]) -> InvalidRequest:
    """The refusal of a key that the chosen YAML files leave out. Hydra adds a legal one only after a `+`."""
    override = next((each for each in overrides if key_of(each) == key), key)
    if key in _GROUPS:
        return InvalidRequest(override, rule="a part of another group", legal=f"{key}@executor.{override}")
    chosen = [each for each in overrides if key_of(each) in _GROUPS and "," not in each]
    data = plain(_compose([*chosen, *(each for each in overrides if key_of(each) == FOLDERS)]), resolved=False)
    parent, _, name = key.rpartition(".")
    path = dict(leaves(data)).get(f"{parent}.{TARGET}") if parent not in OF_RANKS else None
    if key in every_key(RunConfig, data=data) or (isinstance(path, str) and name in argument_names(path)):
        rule = f"the chosen YAML files have no {key}, which a + adds"
        return InvalidRequest(override, rule=rule, legal=f"+{override}")
    keys = list(_keys(data))
    beside = [each for each in keys if each.rpartition(".")[0] == parent] or [each for each in keys if "." not in each]
    legal_keys = {*get_close_matches(key, keys, n=1, cutoff=0.4), *beside}
    return of_other_kind(RunConfig, key, override) or UnknownName("config key", key, legal_keys, legal="")


def _keys(data: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield f"{prefix}{key}"
            yield from _keys(value, f"{prefix}{key}.")
