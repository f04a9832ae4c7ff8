"""Classes and functions by the dotted path that a config names.

A config names parts of the suite, its baselines, and modules in folders that the user has chosen (launch.python_path).
A class or function counts by where it was defined, whatever other module imports it; nothing else is imported.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from suite.core.errors import MissingDependency, Refused, UnknownName

TARGET, PARTIAL = "_target_", "_partial_"
ROOTS = ("suite", "baselines")
# the packages whose classes and functions a config may name; the rest of the suite starts processes or writes records
PARTS = (
    *("suite.analytic", "suite.clusters", "suite.data", "suite.engine", "suite.gnn", "suite.memory", "suite.models"),
    *("suite.pruning", "suite.schedule", "suite.simulate", "suite.weights", "suite.workload", "suite.core.grid"),
    *("suite.bench.emulate", "suite.bench.messages", "suite.bench.checked", "baselines"),
)
# modules among them that write or remove files (tests/architecture keeps the list equal to the code)
BARRED = (
    *("suite.engine.checkpoint", "suite.engine.profile", "suite.engine.shelf", "suite.pruning.ticket"),
    *("suite.gnn.holding", "suite.gnn.plan", "suite.gnn.partition.protocol"),
)
_LEGAL = "suite.weights.policy.Latest, or a class in a folder of launch.python_path"
_RULE = "a class or function of the suite, its baselines, or a folder of launch.python_path, named where it is defined"
_folders: list[Path] = []  # the user's; as global as sys.path, to which they are added


def search(folders: Iterable[str | Path]) -> None:
    """Adds the user's folders: configs may name their modules from now on."""
    for folder in (Path(one).resolve() for one in folders):
        if folder not in _folders:
            _folders.append(folder)
        if str(folder) not in sys.path:
            sys.path.insert(1, str(folder))


def locate(path: str) -> Any:
    """The class or function at a dotted path.

    Raises UnknownName with the nearest path, MissingDependency where its module needs an absent package, and Refused
    for what belongs neither to the suite nor to the user, without importing it.
    """
    home, _, name = path.rpartition(".")
    if not home:
        raise Refused(f"{path!r} is not a class path", rule="package.module.Name", legal=_LEGAL)
    source = module(home, f"to use {path}", name)
    if not hasattr(source, name):
        known = [f"{home}.{key}" for key, value in vars(source).items() if not key.startswith("_") and _allowed(value)]
        raise UnknownName("class", path, known)
    target = getattr(source, name)
    if name.startswith("_") or not (inspect.isclass(target) or inspect.isroutine(target)):
        kind = f"a {type(target).__name__}"
        raise Refused(f"{path} is {kind}", rule="a class or a function with a public name", legal=_LEGAL)
    if not _allowed(target):
        at = f"{getattr(target, '__module__', None)}.{getattr(target, '__qualname__', name)}"
        raise Refused(f"{path} is {at}", rule=_RULE, legal=_LEGAL)
    return target


def module(path: str, purpose: str = "", name: str = "") -> ModuleType:
    """The module at a dotted path of the suite, its baselines or the user's folders.

    purpose and name: what the caller does with it and takes from it, for messages. Raises Refused for another module,
    which is not imported, with the nearest path for a misspelled one; MissingDependency where it needs an absent one.
    """
    top = path.partition(".")[0]
    spec = _spec(top)
    if spec is None:
        raise _no_module(path, name)
    if top not in ROOTS and not _in_folders(spec):
        rule = "a module of the suite, its baselines, or a folder of launch.python_path"
        raise Refused(f"{path} is none of them", rule=rule, legal=_suggestion(path, name))
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and not f"{path}.".startswith(f"{error.name}."):
            raise MissingDependency(error.name, f"pip install it {purpose or f'to use {path}'}") from error
        raise _no_module(path, name) from error


def in_user_folder(home: str) -> bool:
    """Whether a module lies in one of the user's folders."""
    spec = _spec(home.partition(".")[0])
    return spec is not None and _in_folders(spec)


def _spec(top: str) -> ModuleSpec | None:
    """The origin of a top-level module, which is not imported."""
    try:
        return importlib.util.find_spec(top) if top.isidentifier() else None
    except (ImportError, ValueError):  # ValueError: a module without origin, such as __main__
        return None


def _in_folders(spec: ModuleSpec) -> bool:
    """Whether a module lies directly in one of the user's folders: further down there may be a whole environment."""
    if spec.submodule_search_locations is not None:
        places = [Path(one) for one in spec.submodule_search_locations]
    else:
        places = [Path(spec.origin)] if spec.has_location and spec.origin else []
    return bool(places) and all(place.resolve().parent in _folders for place in places)


def _allowed(target: Any) -> bool:
    """Whether it was defined in a module that configs may name."""
    home = getattr(target, "__module__", None)
    if not isinstance(home, str) or not callable(target):
        return False
    if home.partition(".")[0] in ROOTS:
        return _within(home, PARTS) and not _within(home, BARRED) and not home.endswith(".__main__")
    return in_user_folder(home)


def _within(home: str, parts: Iterable[str]) -> bool:
    return any(f"{home}.".startswith(f"{part}.") for part in parts)


def _no_module(path: str, name: str) -> Refused:
    rule = "an importable module and a name in it"
    return Refused(f"there is no module {path!r}", rule=rule, legal=_suggestion(path, name))


def _suggestion(path: str, name: str) -> str:
    near = _nearest(path.split("."), name)
    return f"did you mean {near!r}?" if near else _LEGAL


def _nearest(parts: list[str], name: str) -> str:
    """The legal path whose every part is nearest to that of a misspelled one; empty where a part resembles none.

    name: of the class in the module, empty where a module is sought. Only files are read, as an import may load torch.
    """
    folders, found = _folders, list[str]()
    for number, part in enumerate(parts):
        packages = {each.name for each in pkgutil.iter_modules([str(each) for each in folders])}
        options = packages if number else {*ROOTS, *packages}
        match = get_close_matches(part, options, n=1)
        if not match:
            return ""
        found.append(match[0])
        if not number and match[0] in ROOTS:
            folders = [Path(__file__).resolve().parents[2] / match[0]]
        else:
            folders = [folder / match[0] for folder in folders]
    home = ".".join(found)
    if not name or (found[0] in ROOTS and not _within(home, PARTS)):
        return "" if name else home
    files = [file for each in folders for file in (each.with_suffix(".py"), each / "__init__.py") if file.is_file()]
    match = get_close_matches(name, [key for file in files for key in _names(file)], n=1)
    return f"{home}.{match[0]}" if match else ""


def _names(file: Path) -> list[str]:
    """The names that a module's source defines, or imports from the suite."""
    try:
        body = ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return []
    imports = [node for node in body if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ROOTS]
    defined = [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return [*defined, *(alias.asname or alias.name for node in imports for alias in node.names)]
