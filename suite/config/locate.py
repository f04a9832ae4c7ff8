"""Classes and functions by the dotted path in a config.

A config may name classes and functions of the suite, of its baselines, and of modules in the user's folders
(launch.python_path). A path is legal if the module that defines the object is one of these. No other module is
imported.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from suite.core.errors import InvalidRequest, MissingDependency, UnknownName
from suite.core.resources import ROOT

TARGET, PARTIAL = "_target_", "_partial_"
ROOTS = ("suite", "baselines")
_LEGAL = "suite.weights.policy.Latest, or a class in a folder of launch.python_path"
_RULE = "a class or function of the suite, its baselines, or a folder of launch.python_path, named where it is defined"
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
        raise InvalidRequest(f"{path!r} is not a class path", rule="package.module.Name", legal=_homes(path) or _LEGAL)
    source = module(home, f"to use {path}", name)
    target = getattr(source, name, None)  # includes names that the module's __getattr__ defines
    if target is None:
        top = home.partition(".")[0]  # imported names are listed if they are of the same package
        public = {key: value for key, value in vars(source).items() if not key.startswith("_") and _allowed(value)}
        homes = [f"{home}.{key}" for key, value in public.items() if f"{value.__module__}.".startswith(f"{top}.")]
        raise UnknownName("class", path, homes)
    if name.startswith("_") or not (inspect.isclass(target) or inspect.isroutine(target)):
        kind = f"a {type(target).__name__}"
        raise InvalidRequest(f"{path} is {kind}", rule="a class or a function with a public name", legal=_LEGAL)
    if not _allowed(target):
        at = f"{target.__module__}.{target.__qualname__}"
        raise InvalidRequest(f"{path} is {at}", rule=_RULE, legal=_LEGAL)
    return target


def module(path: str, purpose: str = "", name: str = "") -> ModuleType:
    """The module at a dotted path of the suite, its baselines or the user's folders.

    Args:
        path: Dotted path.
        purpose: Purpose of the import, for messages.
        name: Name that is read from the module, for messages.

    Raises:
        InvalidRequest: For any other module, which is not imported, with the nearest path.
        MissingDependency: If the module needs an absent package.
    """
    _check_top(path, name)
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and not f"{path}.".startswith(f"{error.name}."):
            raise MissingDependency(error.name, f"pip install it {purpose or f'to use {path}'}") from error
        raise _no_module(path, name) from error
    except SyntaxError as error:
        if error.filename is None:  # bytes that are no text
            parse_module(check_source(path))
        raise


def check_source(path: str, name: str = "") -> Path:
    """Source file of a module, which is not imported because it may import torch.

    Raises as `module` does, and UnknownName if the file has no class or function of this name.
    """
    _check_top(path, name)
    top, *parts = path.split(".")
    homes = [ROOT] if top in ROOTS else _folders
    places = [home.joinpath(top, *parts) for home in homes]
    files = [file for each in places for file in (each.with_suffix(".py"), each / "__init__.py") if file.is_file()]
    if not files:
        raise _no_module(path, name)
    if name and name not in (bound_names := _bound(files[0])):
        raise UnknownName("class", f"{path}.{name}", [f"{path}.{each}" for each in {*bound_names, *_names(files[0])}])
    return files[0]


def _check_top(path: str, name: str) -> None:
    """Raises InvalidRequest for a module of another package, which is not imported."""
    top = path.partition(".")[0]
    spec = _spec(top)
    if spec is None:
        raise _no_module(path, name)
    if top not in ROOTS and not _in_folders(spec):
        rule = "a module of the suite, its baselines, or a folder of launch.python_path"
        raise InvalidRequest(f"{path} is in no such folder", rule=rule, legal=_suggestion(path, name))


def in_user_folder(home: str) -> bool:
    """Whether a module lies in one of the user's folders."""
    spec = _spec(home.partition(".")[0])
    return spec is not None and _in_folders(spec)


def _spec(top: str) -> ModuleSpec | None:
    """Import spec of a top-level module, which is not imported."""
    try:
        return importlib.util.find_spec(top) if top.isidentifier() else None
    except (ImportError, ValueError):  # ValueError: a module without origin, such as __main__
        return None


def _in_folders(spec: ModuleSpec) -> bool:
    """Whether a module lies directly in a folder of the user; a subfolder may hold a virtual environment."""
    if spec.submodule_search_locations is not None:
        places = [Path(location) for location in spec.submodule_search_locations]
    else:
        places = [Path(spec.origin)] if spec.has_location and spec.origin else []
    return bool(places) and all(place.resolve().parent in _folders for place in places)


def _allowed(target: Any) -> bool:
    """Whether `target` was defined in the suite, its baselines or the user's folders."""
    home = getattr(target, "__module__", None)
    if not isinstance(home, str) or not callable(target):
        return False
    return home.partition(".")[0] in ROOTS or in_user_folder(home)


def _no_module(path: str, name: str) -> InvalidRequest:
    rule = "an importable module and a name in it"
    return InvalidRequest(f"there is no module {path!r}", rule=rule, legal=_suggestion(path, name))


def _suggestion(path: str, name: str) -> str:
    near = _nearest(path.split("."), name)
    return f"did you mean {near!r}?" if near else _LEGAL


def _nearest(parts: list[str], name: str) -> str:
    """The nearest legal path to a misspelled one; empty if one of its parts resembles no legal part.

    Files are read and not imported, because an import may load torch.

    Args:
        parts: Parts of the path of a module.
        name: Name of a class in the module; empty for the module itself.
    """
    folders, candidates = _folders, list[str]()
    for number, part in enumerate(parts):
        packages = {each.name for each in pkgutil.iter_modules([str(each) for each in folders])}
        options = packages if number else {*ROOTS, *packages}
        match = get_close_matches(part, options, n=1)
        if not match:
            return ""
        candidates.append(match[0])
        if not number and match[0] in ROOTS:
            folders = [ROOT / match[0]]
        else:
            folders = [folder / match[0] for folder in folders]
    home = ".".join(candidates)
    if not name:
        return home
    files = [file for each in folders for file in (each.with_suffix(".py"), each / "__init__.py") if file.is_file()]
    match = get_close_matches(name, [key for file in files for key in _names(file)], n=1)
    return f"{home}.{match[0]}" if match else ""


def _homes(name: str) -> str:
    """Advice for a class path without a module: a module that defines the class; empty if there is none."""
    root = ROOT
    files = [
        *(file for top in ROOTS for file in (root / top).rglob("*.py")),
        *(f for each in _folders for f in each.glob("*.py")),
    ]
    for file in sorted(files):
        home = root if root in file.parents else file.parent
        path = ".".join(file.relative_to(home).with_suffix("").parts).removesuffix(".__init__")
        if re.search(rf"^(class|def) {re.escape(name)}\b", file.read_text(encoding="utf-8"), re.MULTILINE):
            return f"did you mean {f'{path}.{name}'!r}?"
    return ""


def parse_module(file: Path) -> list[ast.stmt]:
    """Statements of a module's source. Raises SyntaxError, which names the file, if it is no Python."""
    try:
        return ast.parse(file.read_bytes(), str(file)).body
    except SyntaxError as error:  # also for bytes that are no text, without a file
        error.filename, error.lineno = str(file), error.lineno or 1
        raise


def _bound(file: Path) -> set[str]:
    """Public names that a module's source defines or imports at its top level."""
    names = set[str]()
    for node in parse_module(file):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def _names(file: Path) -> list[str]:
    """Names that a module's source defines, or imports from the suite."""
    try:
        body = parse_module(file)
    except (OSError, ValueError, SyntaxError):
        return []
    imports = [node for node in body if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ROOTS]
    defined = [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return [*defined, *(alias.asname or alias.name for node in imports for alias in node.names)]
