"""Coupling between modules, and module size.

A file that reads many attributes of another module's class does that class's work: the code belongs to the class. The
test counts, for each file and each class that it names in an annotation, the distinct attributes that the file touches.
Records are exempt, because their fields are their interface: dataclasses, named tuples, protocols and enumerations, and
the models of suite/config.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

from tests.architecture.trees import sources, trees

MOST_ATTRIBUTES = 10
MOST_LINES = 500
COUPLED: dict[tuple[str, str], str] = {
    ("suite/engine/optim/update.py", "ModelState"): "an update reduces, steps and clears the flat buffers of its stage",
}
"""Reasons for pairs of a file and a class above MOST_ATTRIBUTES."""
RECORD_BASES = {"NamedTuple", "Protocol", "Enum", "StrEnum", "TypedDict"}


def is_record(path: str, node: ast.ClassDef) -> bool:
    bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
    dataclass = any(ast.unparse(decorator).startswith("dataclass") for decorator in node.decorator_list)
    return dataclass or bool(bases & RECORD_BASES) or path.startswith("suite/config/")


class Attributes(ast.NodeVisitor):
    """Collect the attributes that one file touches, by class."""

    def __init__(self, classes: Mapping[str, str]) -> None:
        self.classes = classes
        self.touched: dict[str, set[str]] = defaultdict(set)
        self.members: dict[str, str | None] = {}
        self.locals: dict[str, str | None] = {}

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


def coupling(modules: Mapping[str, ast.Module]) -> dict[tuple[str, str], set[str]]:
    """Attributes of another module's class that a file touches, by file and class, without records."""
    homes = {
        node.name: path
        for path, tree in modules.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not is_record(path, node)
    }
    touched = {}
    for path, tree in modules.items():
        visitor = Attributes(homes)
        visitor.visit(tree)
        touched |= {(path, cls): names for cls, names in visitor.touched.items() if homes[cls] != path}
    return touched


def test_no_file_touches_many_attributes_of_another_class() -> None:
    above = {pair: sorted(names) for pair, names in coupling(trees()).items() if len(names) > MOST_ATTRIBUTES}
    assert {pair: names for pair, names in above.items() if pair not in COUPLED} == {}
    assert [pair for pair in COUPLED if pair not in above] == [], "the reason has lost its pair"


def test_modules_are_at_most_500_lines_long() -> None:
    assert [path for path, text in sources().items() if len(text.splitlines()) > MOST_LINES] == []


def test_the_count_follows_parameters_aliases_and_members_and_leaves_records_out() -> None:
    readers = (
        "def read(machine: Machine):\n    return machine.a, machine.b",
        "def read(machine: 'Machine | None'):\n    same = machine\n    return same.a, same.b",
        "class Reader:\n    def __init__(self, machine: Machine):\n        self.machine = machine\n"
        "    def read(self):\n        return self.machine.a, self.machine.b",
        "def read():\n    machine = Machine()\n    return machine.a, machine.b",
    )
    for reader in readers:
        for record, expected in (("", {("suite/reader.py", "Machine"): {"a", "b"}}), ("@dataclass\n", {})):
            machine = ast.parse(f"{record}class Machine: ...")
            assert coupling({"suite/machine.py": machine, "suite/reader.py": ast.parse(reader)}) == expected, reader
