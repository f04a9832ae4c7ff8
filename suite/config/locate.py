"""Classes and functions by the dotted path in a config.

A config may name classes and functions of the suite, of its baselines, and of modules in the user's folders
(launch.python_path). A path is legal if the module that defines the object is one of these. No other module is
imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from suite.core.errors import InvalidRequest, MissingDependency, UnknownName
from suite.core.resources import ROOT
from suite.core.values import format_value

TARGET, PARTIAL = "_target_", "_partial_"
ROOTS = ("suite", "baselines")
_LEGAL = "suite.weights.policy.Latest, or a class in a folder of launch.python_path"
_RULE = "a public class or function of the suite, its baselines, or a folder of launch.python_path, defined there"
_folders: list[Path] = []  # folders of the user, which are added to sys.path


def search(folders: Iterable[str | Path]) -> None:
    """Add folders of the user, whose modules a config may then name."""
    for folder in (Path(name).resolve() for name in folders):
        if folder not in _folders:
            _folders.append(folder)
        if str(folder) not in sys.path:
            sys.path.insert(1, str(folder))


def locate(path: str) -> Any:
    """The class or function at a dotted path.

    Raises UnknownName with the nearest path, MissingDependency if its module needs an absent package, and
    InvalidRequest for a module outside the suite and the folders of the user, which is not imported.
    """
    home, _, name = path.rpartition(".")
    if not home:
        raise InvalidRequest(f"{path!r} is not a class path", rule="package.module.Name", legal=_LEGAL)
    source = module(home)
    target = getattr(source, name, None)  # includes names that the module's __getattr__ defines
    if target is None:
        top = home.partition(".")[0]  # imported names are listed if they are of the same package
        public = {key: value for key, value in vars(source).items() if not key.startswith("_") and _allowed(value)}
        homes = [f"{home}.{key}" for key, value in public.items() if f"{value.__module__}.".startswith(f"{top}.")]
        raise UnknownName("class", path, homes)
    if name.startswith("_") or not (inspect.isclass(target) or inspect.isroutine(target)) or not _allowed(target):
        raise InvalidRequest(f"{path} is {format_value(target)}", rule=_RULE, legal=_LEGAL)
    return target


def module(path: str) -> ModuleType:
    """The module at a dotted path of the suite, its baselines or the user's folders.

    Raises UnknownName with the nearest path, MissingDependency if it needs an absent package, and InvalidRequest for a
    module of another package, which is not imported.
    """
    legal = _is_legal(path.partition(".")[0])
    if legal is False:
        rule = "a module of the suite, its baselines, or a folder of launch.python_path"
        raise InvalidRequest(f"{path} is in no such folder", rule=rule, legal=_LEGAL)
    try:
        if legal:
            return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and not f"{path}.".startswith(f"{error.name}."):
            raise MissingDependency(error.name, f"pip install it to use {path}") from error
    except SyntaxError as error:
        if (
            error.lineno is None
        ):  # bytes that are no text; another error is the user's, and its traceback shows the line
            raise InvalidRequest(f"{path} cannot be imported: {error}", rule="a file of Python") from error
        raise
    raise UnknownName("module", path, _modules(), alike=0.6, legal=_LEGAL)


def _modules() -> Iterator[str]:
    """Dotted paths of the modules that a config may name. No file is imported."""
    for top in ROOTS:
        for file in (ROOT / top).rglob("*.py"):
            yield ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    yield from (each.name for each in pkgutil.iter_modules(map(str, _folders)))


def _is_legal(top: str) -> bool | None:
    """Whether a top-level module is the suite, its baselines, or lies directly in a folder of the user; a subfolder may
    hold a virtual environment. None if there is no such module. It is not imported.
    """
    try:
        spec = importlib.util.find_spec(top) if top.isidentifier() else None
    except (ImportError, ValueError):  # ValueError: a module without origin, such as __main__
        return None
    if spec is None or top in ROOTS:
        return None if spec is None else True
    places = spec.submodule_search_locations or ([spec.origin] if spec.has_location and spec.origin else [])
    return bool(places) and all(Path(place).resolve().parent in _folders for place in places)


def _allowed(target: Any) -> bool:
    """Whether `target` was defined in the suite, its baselines or the user's folders."""
    home = getattr(target, "__module__", None)
    return isinstance(home, str) and callable(target) and bool(_is_legal(home.partition(".")[0]))
