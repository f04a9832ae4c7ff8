"""Checks that code outside suite/config takes typed configurations and does not probe objects for members by name.

The limits of probes and of untyped mappings are their present numbers: they may only fall.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = [path for folder in ("suite", "baselines") for path in sorted((ROOT / folder).rglob("*.py"))]
UNTYPED = ("Mapping[str, Any]", "dict[str, Any]")
BORDERS = ("suite/config/", "suite/core/record.py")
LIMITS = {"hasattr": 26, "getattr": 45, "untyped": 108}


def outside(path: Path) -> bool:
    return not path.relative_to(ROOT).as_posix().startswith(BORDERS)


def is_config(node: ast.expr) -> bool:
    """Whether an expression is a variable or an attribute with the name `config`."""
    return (isinstance(node, ast.Name) and node.id == "config") or (
        isinstance(node, ast.Attribute) and node.attr == "config"
    )


def subscripts(tree: ast.AST) -> list[int]:
    """The lines that look up a key of a configuration by a literal."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and is_config(node.value) and isinstance(node.slice, ast.Constant)
    ]


def probes(tree: ast.AST) -> Counter[str]:
    """How often a tree probes an object for a member, and annotates an untyped mapping."""
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            literal = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
            if node.func.id in ("hasattr", "getattr") and literal:
                found[node.func.id] += 1
        annotation = getattr(node, "annotation", None)
        if annotation is not None and ast.unparse(annotation) in UNTYPED:
            found["untyped"] += 1
    return found


def test_no_key_of_a_config_is_looked_up_outside_the_config_package() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for path in FILES
        if outside(path)
        if (lines := subscripts(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


def test_probes_and_untyped_mappings_become_fewer() -> None:
    found: Counter[str] = Counter()
    for path in filter(outside, FILES):
        found += probes(ast.parse(path.read_text(encoding="utf-8")))
    assert {name: count for name, count in found.items() if count > LIMITS[name]} == {}


def test_each_kind_is_found() -> None:
    tree = ast.parse('def f(a: dict[str, Any]): return hasattr(a, "b"), getattr(a, "c", 1), a.config["d"]')
    assert probes(tree) == Counter(hasattr=1, getattr=1, untyped=1)
    assert subscripts(tree) == [1]
