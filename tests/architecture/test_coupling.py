"""Coupling between modules, and module size.

A file that reads many attributes of another module's class does that class's work: the code belongs to the class. The
test counts, for each file and each class that it names in an annotation, the distinct attributes that the file touches.
Records are exempt, because their fields are their interface: dataclasses, named tuples, protocols and enumerations, and
the models of suite/config.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_ATTRIBUTES = 10
MOST_LINES = 500
COUPLED: dict[tuple[str, str], str] = {
    ("suite/engine/optim/update.py", "ModelState"): "an update reduces, steps and clears the flat buffers of its stage",
}
"""Reasons for pairs of a file and a class above MOST_ATTRIBUTES."""
LONG: dict[str, str] = {}
"""Reasons for modules above MOST_LINES."""
RECORD_BASES = ("NamedTuple", "Protocol", "Enum", "StrEnum", "TypedDict")

Types = Mapping[str, str | None]
"""Class of each name in scope; None for a class outside the suite."""


def sources(root: Path) -> dict[str, ast.Module]:
    """Syntax trees of the suite and its baselines, by path relative to `root`."""
    files = [path for folder in ("suite", "baselines") for path in sorted((root / folder).rglob("*.py"))]
    return {path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in files}


def is_record(path: str, node: ast.ClassDef) -> bool:
    bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
    dataclass = any(ast.unparse(decorator).startswith("dataclass") for decorator in node.decorator_list)
    return dataclass or bool(bases & set(RECORD_BASES)) or path.startswith("suite/config/")


class Attributes(ast.NodeVisitor):
    """Collect the attributes that one file touches, by class."""

    def __init__(self, classes: Iterable[str]) -> None:
        self.classes = set(classes)
        self.touched: dict[str, set[str]] = defaultdict(set)
        self.members: Types = {}
        self.locals: Types = {}

    def class_of(self, annotation: ast.expr | None) -> str | None:
        """The first class of the suite that an annotation names."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        names = (node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)) if annotation else ()
        return next((name for name in names if name in self.classes), None)

    def type_of(self, node: ast.expr) -> str | None:
        """Class of a name, of an attribute of `self`, or of a constructor call."""
        match node:
            case ast.Name(id=name):
                return self.locals.get(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self.members.get(name)
            case ast.Call(func=ast.Name(id=name)) if name in self.classes:
                return name
        return None

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self.members = self.members, {}
        members: dict[str, str | None] = {}
        for method in node.body:
            if isinstance(method, ast.FunctionDef):
                self.locals = self.parameters(method)
                for target, value in assignments(method):
                    if isinstance(target, ast.Attribute):
                        members[target.attr] = self.type_of(value)
            elif isinstance(method, ast.AnnAssign) and isinstance(method.target, ast.Name):
                members[method.target.id] = self.class_of(method.annotation)
        self.members, self.locals = members, {}
        self.generic_visit(node)
        self.members = outer

    def parameters(self, node: ast.FunctionDef) -> dict[str, str | None]:
        arguments = node.args
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        return {argument.arg: self.class_of(argument.annotation) for argument in every}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer = self.locals
        self.locals = {**outer, **self.parameters(node)}
        for target, value in assignments(node):
            if isinstance(target, ast.Name) and (cls := self.type_of(value)):
                self.locals = {**self.locals, target.id: cls}
        self.generic_visit(node)
        self.locals = outer

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if cls := self.type_of(node.value):
            self.touched[cls].add(node.attr)
        self.generic_visit(node)


def assignments(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Pairs of a target and its value; tuples on both sides are taken apart."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value


def coupling(trees: Mapping[str, ast.Module]) -> dict[tuple[str, str], set[str]]:
    """Attributes of another module's class that a file touches, by file and class, without records."""
    homes = {
        node.name: path
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not is_record(path, node)
    }
    touched = {}
    for path, tree in trees.items():
        visitor = Attributes(homes)
        visitor.visit(tree)
        touched |= {(path, cls): names for cls, names in visitor.touched.items() if homes[cls] != path}
    return touched


def test_no_file_touches_many_attributes_of_another_class() -> None:
    touched = coupling(sources(ROOT))
    above = {pair: sorted(names) for pair, names in touched.items() if len(names) > MOST_ATTRIBUTES}
    assert {pair: names for pair, names in above.items() if pair not in COUPLED} == {}
    assert [pair for pair in COUPLED if pair not in above] == [], "the reason has lost its pair"


def test_modules_are_at_most_500_lines_long() -> None:
    paths = [path for folder in ("suite", "baselines") for path in (ROOT / folder).rglob("*.py")]
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines()) for path in paths}
    above = {path for path, lines in lengths.items() if lines > MOST_LINES}
    assert above == LONG.keys()


@pytest.mark.parametrize(
    "reader",
    [
        "def read(machine: Machine):\n    return machine.a, machine.b",
        "def read(machine: 'Machine | None'):\n    same = machine\n    return same.a, same.b",
        "class Reader:\n    def __init__(self, machine: Machine):\n        self.machine = machine\n"
        "    def read(self):\n        return self.machine.a, self.machine.b",
        "def read():\n    machine = Machine()\n    return machine.a, machine.b",
    ],
    ids=["parameter", "alias", "member", "constructor"],
)
def test_the_count_follows_parameters_aliases_and_members(reader: str) -> None:
    trees = {"suite/machine.py": ast.parse("class Machine: ..."), "suite/reader.py": ast.parse(reader)}
    assert coupling(trees) == {("suite/reader.py", "Machine"): {"a", "b"}}


def test_records_are_exempt() -> None:
    record = "@dataclass(frozen=True)\nclass Sizes: ..."
    reader = "def read(sizes: Sizes):\n    return sizes.a, sizes.b"
    assert coupling({"suite/sizes.py": ast.parse(record), "suite/reader.py": ast.parse(reader)}) == {}
