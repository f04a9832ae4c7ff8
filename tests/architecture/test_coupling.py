"""Coupling between modules, and module size.

A file that reads many attributes of another module's class does that class's work: the code belongs to the class. The
test counts, for each file and each class that it names in an annotation, the distinct attributes that the file touches.
Records are exempt, because their fields are their interface: dataclasses, named tuples, protocols and enumerations, and
the models of suite/config.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

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


def pairs(node: ast.Assign) -> Iterable[tuple[ast.expr, ast.expr]]:
    """Each target with its value; tuples on both sides are taken apart."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return zip(target.elts, value.elts, strict=False)
    return [(each, value) for each in node.targets]


class Attributes(ast.NodeVisitor):
    """Collect the attributes that one file touches, by class.

    The class of a name or of `self.name` is known from an annotation, a constructor call, or an assignment of those.
    """

    def __init__(self, classes: Mapping[str, str]) -> None:
        self.classes = classes
        self.touched: dict[str, set[str]] = defaultdict(set)
        self.types: dict[str, str | None] = {}

    def class_of(self, annotation: ast.expr | None) -> str | None:
        """The first class of the suite that an annotation names."""
        words = re.findall(r"\w+", ast.unparse(annotation)) if annotation else ()
        return next((word for word in words if word in self.classes), None)

    def type_of(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Call):
            return self.class_of(node.func) if isinstance(node.func, ast.Name) else None
        return self.types.get(ast.unparse(node)) if isinstance(node, ast.Name | ast.Attribute) else None

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self.types = self.types, {}
        for child in sorted(node.body, key=lambda each: getattr(each, "name", "") != "__init__"):
            if isinstance(child, ast.AnnAssign):
                self.types[f"self.{ast.unparse(child.target)}"] = self.class_of(child.annotation)
            self.visit(child)
        self.types = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer = self.types
        self.types = dict(outer)
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        self.types |= {argument.arg: self.class_of(argument.annotation) for argument in arguments}
        for each in ast.walk(node):
            for target, value in pairs(each) if isinstance(each, ast.Assign) else ():
                if cls := self.type_of(value):
                    self.types[ast.unparse(target)] = cls
        self.generic_visit(node)
        members = {name: cls for name, cls in self.types.items() if name.startswith("self.")}
        self.types = {**outer, **members}

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if cls := self.type_of(node.value):
            self.touched[cls].add(node.attr)
        self.generic_visit(node)


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
