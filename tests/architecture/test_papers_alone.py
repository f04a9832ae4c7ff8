"""No public function or class outside suite/papers serves suite/papers only.

A claim rests on code that ordinary runs use, or on code in suite/papers. A function that only answers of claims call
belongs to suite/papers: a mutation of it would break no ordinary run.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAPERS = "suite.papers"
EXEMPT = (PAPERS, "suite.report", "suite.cli")
DOTTED = re.compile(r"(?:suite|baselines)(?:\.\w+)+")
ALLOWED = {  # definitions that serve suite/papers only, with the reason for their place
    "suite.core.blind.Hidden": "part of blind mode; its user, suite.papers.common.claims, imports suite.core alone",
}

Name = tuple[str, str]  # module, and a top-level name in it


@dataclass
class Module:
    """Top-level definitions of a module, its imports by name, and the references of each definition.

    Attributes:
        uses: References by the name of the function or class that holds them; "" for the other statements.
    """

    name: str
    package: str
    tree: ast.Module
    defined: dict[str, ast.stmt] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)
    uses: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def __post_init__(self) -> None:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                self.imported |= {alias.asname: alias.name for alias in node.names if alias.asname}
                self.imported |= {alias.name.partition(".")[0]: alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                self.imported |= {alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names}
        for node in self.tree.body:
            inner = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            name = node.name if inner else ""  # type: ignore[attr-defined]
            if inner:
                self.defined[name] = node
            self.uses[name] |= set(references(node))

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return str(node.module)
        parts = self.package.split(".")
        return ".".join((*parts[: len(parts) - node.level + 1], *filter(None, [node.module])))


def references(node: ast.AST, hidden: frozenset[str] = frozenset()) -> Iterator[str]:
    """Names and dotted names that a statement refers to, and strings that are the path of a module.

    A name bound in a function is not a reference to the module's name.
    """
    if isinstance(node, ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        hidden |= set(bound(node))
    if text := dotted(node):
        if text.partition(".")[0] not in hidden:
            yield text
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from references(child, hidden)


def dotted(node: ast.AST) -> str:
    """Text of a name or of attributes of a name; empty for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    inner = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{inner}.{node.attr}" if inner else ""  # type: ignore[attr-defined]


def bound(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


class Usage:
    """Users of each definition, over all modules and configuration files."""

    def __init__(self, sources: Mapping[str, str], configured: Iterable[str] = ()) -> None:
        """Read `sources` (text by path) and `configured`, the dotted names in configuration files."""
        read = [self._module(path, text) for path, text in sources.items()]
        self.modules = {module.name: module for module in read}
        self.users: dict[Name, set[Name]] = defaultdict(set)
        for module in read:
            for user, names in module.uses.items():
                for name in filter(None, (self.resolve(module, each) for each in names)):
                    self.users[name].add((module.name, user))
        for name in filter(None, map(self.find, configured)):
            self.users[name].add(("", ""))

    @staticmethod
    def _module(path: str, text: str) -> Module:
        parts = Path(path).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        return Module(name, ".".join(parts[:-1]), ast.parse(text))

    def resolve(self, module: Module, text: str) -> Name | None:
        """The definition that a name in a module means, through all re-exports."""
        head, _, rest = text.partition(".")
        if head in module.defined:
            return module.name, head
        if head in module.imported and module.imported[head] != head:
            text = f"{module.imported[head]}{'.' * bool(rest)}{rest}"
        return self.find(text)

    def find(self, dotted: str) -> Name | None:
        """Definition at or above a dotted name; a method belongs to its class."""
        parts = dotted.split(".")
        for end in range(len(parts) - 1, 0, -1):
            module = self.modules.get(".".join(parts[:end]))
            if module is not None:
                name = parts[end]
                if name in module.defined:
                    return module.name, name
                source = module.imported.get(name)
                return self.find(".".join((source, *parts[end + 1 :]))) if source and source != dotted else None
        return None

    def used(self, name: Name, seen: frozenset[Name] = frozenset()) -> bool:
        """Whether a module outside suite/papers uses a definition, directly or through another definition."""
        if name in seen:
            return False
        return any(
            module != name[0] or not user or self.used((module, user), seen | {name})
            for module, user in self.users[name]
            if not inside(module, PAPERS)
        )

    def only_for_papers(self) -> list[str]:
        """Public definitions outside suite/papers that no other package uses."""
        candidates = [name for name, users in self.users.items() if any(inside(module, PAPERS) for module, _ in users)]
        return sorted(
            f"{module}.{name}"
            for module, name in candidates
            if is_machine_package(module) and not name.startswith("_") and not self.used((module, name))
        )


def inside(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def is_machine_package(module: str) -> bool:
    return module.count(".") > 1 and inside(module, "suite") and not inside(module, *EXEMPT)


def test_no_definition_serves_papers_only() -> None:
    paths = [path for folder in ("suite", "baselines") for path in sorted((ROOT / folder).rglob("*.py"))]
    conf = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "conf").rglob("*.yaml")))
    sources = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    usage = Usage(sources, DOTTED.findall(conf))
    assert usage.only_for_papers() == sorted(ALLOWED)


ROOM = "def f(): ...\n"
ANSWER = {"suite/papers/a/formulas.py": "from suite.gnn.room import f\ndef answer(): return f()\n"}
FOR_PAPERS_ONLY = {
    "used by nothing used": {"suite/gnn/room.py": f"{ROOM}def g(): return f()\n", **ANSWER},
    "a parameter's name": {"suite/gnn/room.py": f"{ROOM}def g(f): return f()\n\ng(1)\n", **ANSWER},
    "itself": {"suite/gnn/room.py": "def f(): return f()\n", **ANSWER},
    "exported": {"suite/gnn/room.py": ROOM, "suite/gnn/__init__.py": "from suite.gnn.room import f\n", **ANSWER},
    "by module": {
        "suite/gnn/room.py": ROOM,
        "suite/papers/b/c.py": "from suite.gnn import room\nroom.f()\n",
    },
    "in full": {"suite/gnn/room.py": ROOM, "suite/papers/b/c.py": "import suite.gnn.room\nsuite.gnn.room.f()\n"},
}
OTHER_USERS = {
    "neighbour": {"suite/gnn/x.py": "from .room import f\nf()\n"},
    "a baseline": {"baselines/x.py": "from suite.gnn import room as r\nclass A:\n    def g(self): return r.f()\n"},
    "a command": {
        "suite/cli/draw.py": "def g():\n    from suite.gnn import f\n    return f\n",
        "suite/gnn/__init__.py": "from .room import f",
    },
    "by a string": {"suite/gnn/x.py": "NAME = 'suite.gnn.room.f'\n"},
    "through another": {
        "suite/gnn/room.py": f"{ROOM}def g(): return f()\n",
        "suite/report/x.py": "from suite.gnn.room import g\ng()",
    },
    "at import": {"suite/gnn/room.py": f"{ROOM}ALL = [f]\n"},
}


def test_users_of_a_definition_are_found() -> None:
    for name, sources in FOR_PAPERS_ONLY.items():
        assert Usage(sources).only_for_papers() == ["suite.gnn.room.f"], name
    for name, more in OTHER_USERS.items():
        assert Usage({"suite/gnn/room.py": ROOM, **ANSWER, **more}).only_for_papers() == [], name
    assert Usage({"suite/gnn/room.py": ROOM, **ANSWER}, ["suite.gnn.room.f"]).only_for_papers() == [], "configured"
