"""No public function or class outside suite/papers and suite/claims serves these only.

A claim rests on code that ordinary runs use, or on code in these two. A function that only answers of claims call
belongs to them: a mutation of it would break no ordinary run.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAPERS = ("suite/papers/", "suite/claims/")
EXEMPT = (
    *PAPERS,
    "suite/stats/",
    "suite/report/",
    "suite/cli/",
    "baselines/",
)  # may serve papers only
Name = tuple[str, str]  # file, and a top-level name in it; "" for its other statements


def definitions(sources: Mapping[str, str]) -> dict[Name, set[str]]:
    """Names that each top-level function or class, and the other statements of each file but imports, refer to."""
    names = defaultdict[Name, set[str]](set)
    for path, text in sources.items():
        if not path.endswith(".py"):
            names[path, ""] |= set(re.findall(r"\w+", text))
            continue
        for node in ast.parse(text).body:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                names[path, getattr(node, "name", "")] |= set(references(node))
    return names


def references(statement: ast.stmt) -> Iterator[str]:
    """Names, attributes, and the parts of strings that are the path of a module."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.Constant) and re.fullmatch(r"(suite|baselines)(\.\w+)+", str(node.value)):
            yield from str(node.value).split(".")


def only_for_papers(sources: Mapping[str, str]) -> list[str]:
    """Public definitions whose names occur in suite/papers, and elsewhere only in definitions like that."""
    names = definitions(sources)
    users = defaultdict[str, set[Name]](set)
    for user, of_user in names.items():
        for name in of_user:
            users[name].add(user)

    def used(name: Name, seen: frozenset[Name]) -> bool:
        """Whether code outside suite/papers uses a definition, directly or through another definition of its file."""
        return any(
            user[0] != name[0] or not user[1] or used(user, seen | {user})
            for user in users[name[1]] - seen
            if not user[0].startswith(PAPERS)
        )

    return sorted(
        f"{path} {name}"
        for path, name in names
        if name and not name.startswith("_") and path.startswith("suite/") and not path.startswith(EXEMPT)
        if any(user[0].startswith(PAPERS) for user in users[name]) and not used((path, name), frozenset([(path, name)]))
    )


def test_no_definition_serves_papers_only() -> None:
    files = [path for folder in ("suite", "baselines") for path in (ROOT / folder).rglob("*.py")]
    files += (ROOT / "conf").rglob("*.yaml")
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(files)}
    assert only_for_papers(sources) == []


def test_users_of_a_definition_are_found() -> None:
    room, user = "suite/gnn/room.py", {"suite/papers/a/b.py": "from suite.gnn.room import f\ndef g(): return f()\n"}
    for text in ("def f(): ...\n", "def f(): return f()\n", "def f(): ...\ndef h(): return f()\n"):
        assert only_for_papers({room: text, **user}) == [f"{room} f"], text
    for path, text in (("suite/gnn/x.py", "def h(): return f()"), ("conf/a.yaml", "_target_: suite.gnn.room.f")):
        assert only_for_papers({room: "def f(): ...\n", path: text, **user}) == []
    assert only_for_papers({room: "def f(): ...\nALL = [f]\n", **user}) == []
