"""Decides how a config becomes an object: a mapping with `_target_: package.module.Name` is that class, called.

With `_partial_: true` it is the function with these arguments, to be called later with the rest.

Ranks build from plain frozen data with this, so that they need no Hydra. A config may come from anybody, so what it
names is never more than a part of the suite, or of a folder that the user has chosen: a class or a function is known
by where it was defined, whatever name it goes by elsewhere.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from suite.core.errors import MissingDependency, Refused, UnknownName
from suite.core.fits import check_arguments, hints_of, never, parts, shown
from suite.core.keys import in_config_keys
from suite.core.reasons import headline, is_users, whole

TARGET, PARTIAL = "_target_", "_partial_"
# whose classes and functions a config may name; the rest of the suite starts processes, or keeps files
PARTS = (
    *("suite.analytic", "suite.clusters", "suite.data", "suite.engine", "suite.gnn", "suite.memory", "suite.models"),
    *("suite.pruning", "suite.schedule", "suite.simulate", "suite.weights", "suite.workload", "suite.core.grid"),
    *("suite.bench.emulate", "suite.bench.messages", "suite.bench.checked", "baselines"),
)
# of these what writes or removes files (tests/architecture holds the list to the code)
BARRED = (
    *("suite.engine.checkpoint", "suite.engine.profile", "suite.engine.shelf", "suite.pruning.ticket"),
    *("suite.gnn.holding", "suite.gnn.plan", "suite.gnn.partition.protocol"),
)
_NEVER_BUILT = ("suite.gnn.prepare",)  # is asked by a run for its ranks, in a folder of the run's
_LEGAL = "suite.weights.policy.Latest, or a module in a folder of launch.python_path"
_own: list[Path] = []  # as global as sys.path, which it adds to


def search(folders: Iterable[str | Path]) -> None:
    """Modules in these folders may be named from now on, and are found: they are the user's own choice."""
    for folder in (Path(one).resolve() for one in folders):
        if folder not in _own:
            _own.append(folder)
        if str(folder) not in sys.path:
            sys.path.insert(1, str(folder))


def locate(path: str) -> Any:
    """The class or function at a dotted class path.

    Raises UnknownName with the nearest match, MissingDependency where its module needs a package that is not here,
    Refused for what is not the suite's or the user's own, without importing it.
    """
    module_path, _, name = path.rpartition(".")
    if not module_path:
        raise Refused(f"{path!r} is not a class path", rule="package.module.Name", legal="suite.weights.policy.Latest")
    found = module(module_path, f"to use {path}")
    if not hasattr(found, name):
        public = [key for key, value in vars(found).items() if not key.startswith("_") and _allowed(value)]
        raise UnknownName(f"object in {module_path}", name, public)
    target = getattr(found, name)
    if name.startswith("_") or not (inspect.isclass(target) or inspect.isroutine(target)):
        kind = f"a {type(target).__name__}"
        raise Refused(f"{path} is {kind}", rule="a class or a function with a public name", legal=_LEGAL)
    if not _allowed(target):
        at = f"{getattr(target, '__module__', None)}.{getattr(target, '__qualname__', name)}"
        rule = "a config names parts of the suite, its baselines, and one's own modules, by where they are defined"
        raise Refused(f"{path} is {at}", rule=rule, legal=_LEGAL)
    return target


def module(path: str, purpose: str = "") -> ModuleType:
    """The module at a dotted path, of the suite, its baselines or the user's own folders. Raises Refused for another,
    which is not imported; MissingDependency where it needs a package that is not here."""
    top = path.partition(".")[0]
    spec = _spec(top)
    if spec is None:
        raise Refused(f"there is no module {path!r}", rule="an importable module and a name in it", legal=_LEGAL)
    if top not in ("suite", "baselines") and not _is_own(spec):
        rule = "a config names modules of the suite, its baselines, and the folders of launch.python_path"
        raise Refused(f"{path} is none of them", rule=rule, legal=_LEGAL)
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and not f"{path}.".startswith(f"{error.name}."):
            raise MissingDependency(error.name, f"pip install it {purpose or f'to use {path}'}") from error
        raise Refused(f"there is no module {path!r}", rule="an importable module and a name in it") from error


def _spec(top: str) -> ModuleSpec | None:
    """Where a module that is no part of a package would come from; nothing is imported."""
    try:
        return importlib.util.find_spec(top) if top.isidentifier() else None
    except (ImportError, ValueError):  # ValueError: a module that came from nowhere, such as __main__
        return None


def _is_own(spec: ModuleSpec) -> bool:
    """Whether a module lies in one of the user's folders itself, not anywhere below: a folder may hold a whole
    environment."""
    if spec.submodule_search_locations is not None:
        places = [Path(one) for one in spec.submodule_search_locations]
    else:
        places = [Path(spec.origin)] if spec.has_location and spec.origin else []
    return bool(places) and all(place.resolve().parent in _own for place in places)


def _allowed(target: Any) -> bool:
    """Whether it was defined in a part that configs may name."""
    home = getattr(target, "__module__", None)
    if not isinstance(home, str) or not callable(target):
        return False
    if home.partition(".")[0] in ("suite", "baselines"):
        return _within(home, PARTS) and not _within(home, BARRED) and not home.endswith(".__main__")
    spec = _spec(home.partition(".")[0])
    return spec is not None and _is_own(spec)


def _within(home: str, parts: Iterable[str]) -> bool:
    return any(f"{home}.".startswith(f"{part}.") for part in parts)


def check_makes(name: str, config: Any, wanted: Any) -> None:
    """Raises Refused where a config, or one inside its list or group, names what makes nothing of the kind `wanted`.
    Nothing is made for it. name: of the config, for the message"""
    for path, each, hint in parts(name, config, wanted):
        reason = never(locate(str(each[TARGET])), hint, partly=bool(each.get(PARTIAL, False)))
        if reason:
            raise Refused(f"{path}={each[TARGET]}", rule=f"its place wants {reason}")


def build(config: Any, **extra: Any) -> Any:
    """Build `config` and everything inside it. `extra` is passed to the outermost target.

    Raises Refused where the arguments do not fit the target, naming those that do.
    """
    if isinstance(config, list | tuple):
        return [build(item) for item in config]
    if not isinstance(config, Mapping):
        return config
    given = {str(key): value for key, value in config.items() if key not in (TARGET, PARTIAL)}
    if TARGET not in config:
        return {**{key: build(value) for key, value in given.items()}, **extra}
    target = locate(str(config[TARGET]))
    if target.__module__ in _NEVER_BUILT:
        raise Refused(f"{config[TARGET]} writes files", rule="an executor's `prepares` alone names it", legal=_LEGAL)
    hints = hints_of(target)
    for key, value in given.items():
        check_makes(f"{config[TARGET]}: {key}", value, hints.get(key, Any))
    arguments = {key: build(value) for key, value in given.items()}
    arguments.update(extra)
    partly = bool(config.get(PARTIAL, False))
    signature = inspect.signature(target)
    try:
        (signature.bind_partial if partly else signature.bind)(**arguments)
    except TypeError as error:
        accepted = ", ".join(signature.parameters)
        raise Refused(f"{config[TARGET]}: {error}", rule=f"its arguments are {accepted or 'none'}") from error
    check_arguments(f"{config[TARGET]}: ", target, arguments)
    if partly:
        return partial(target, **arguments)
    try:
        with in_config_keys():
            return target(**arguments)
    except (TypeError, ValueError) as error:  # a value of the wrong kind, such as text for a count
        called = ", ".join(f"{key}={shown(value)}" for key, value in arguments.items() if key not in extra)
        said = headline(whole(error)) if is_users(error) else str(error)
        raise Refused(f"{config[TARGET]}({called}): {said}", rule="values of the kinds its docstring gives") from error
