"""Names across modules: one top-level class per name, and no cycle of imports."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, ast.Module]:
    """The syntax trees of suite and baselines, by module."""
    files = [path for folder in ("suite", "baselines") for path in sorted((ROOT / folder).rglob("*.py"))]
    return {dotted(path): ast.parse(path.read_text(encoding="utf-8")) for path in files}


def imported(tree: ast.Module) -> set[str]:
    """Modules of the suite that a module imports, also inside functions, but not for TYPE_CHECKING."""
    names, stack = set[str](), list(ast.iter_child_nodes(tree))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            paths = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {path if path in modules() else node.module for path in paths}
        stack.extend(ast.iter_child_nodes(node))
    return names & modules().keys()


def test_class_names_are_unique() -> None:
    homes = defaultdict(list)
    for module, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module)
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_imports_have_no_cycle() -> None:
    TopologicalSorter({module: imported(tree) for module, tree in modules().items()}).prepare()


def test_no_module_docstring_begins_with_decides() -> None:
    docstrings = {module: ast.get_docstring(tree) or "" for module, tree in modules().items()}
    assert [module for module, text in docstrings.items() if text.startswith("Decides")] == []
