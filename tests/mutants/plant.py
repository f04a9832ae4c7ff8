"""Plant mutants in a copy of the tree, switched on one at a time by the environment variable MUTANT.

A mutant is one small fault: another comparison, `and` for `or`, a negated condition, another integer, `-` for `+`, or a
dropped call, assignment or `raise`. All mutants of the list stand in the copy at once:

    if x < limit:            becomes            if (x <= limit if __mutant__(17) else x < limit):

so that one run of the tests finds which tests reach which mutants, and a run with MUTANT=17 has that fault alone.
Code that numba or Triton compiles, annotations, and text are left as they are.
"""

from __future__ import annotations

import ast
import csv
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SWITCH = "mutant_switch"  # module that the copy imports; tests/mutants/switch.py
PACKAGES = ("suite", "baselines")
_COMPILED = ("jit", "njit", "triton", "vectorize")
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: `original` becomes `mutated`, the `nth` time that the function holds this text."""

    file: str
    function: str
    original: str
    nth: int
    mutated: str


def _mutations(node: ast.AST) -> Iterator[ast.AST]:
    """The mutated forms of one node."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        ops = [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]]
        yield ast.Compare(node.left, ops, node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Constant):
        changed = ast.parse(ast.unparse(node)).body[0]
        assert isinstance(changed, ast.If | ast.While)
        changed.test = ast.UnaryOp(ast.Not(), changed.test) if isinstance(node, ast.If) else ast.Constant(False)
        yield changed
    elif _droppable(node):
        yield ast.Pass()


def _droppable(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    return isinstance(node, ast.Raise | ast.AugAssign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    )


class _Sites(ast.NodeVisitor):
    """Every node of a module that may be mutated, with the function that holds it."""

    def __init__(self) -> None:
        self.found: list[tuple[str, ast.AST]] = []
        self._names: list[str] = []
        self._functions = 0

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if any(part in ast.unparse(decorator) for decorator in node.decorator_list for part in _COMPILED):
            return
        self._names.append(node.name)
        self._functions += 1
        for statement in node.body:
            self.visit(statement)
        self._functions -= 1
        self._names.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.JoinedStr | ast.match_case | ast.Assert):
            return
        if self._functions:
            self.found.append((".".join(self._names), node))
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.visit(node.value)
            return
        super().generic_visit(node)


def _candidates(file: str, tree: ast.Module) -> Iterator[tuple[Mutant, ast.AST, ast.AST]]:
    sites = _Sites()
    sites.visit(tree)
    seen: dict[tuple[str, str], int] = defaultdict(int)
    for function, node in sites.found:
        for mutated in _mutations(node):
            text = ast.unparse(node).splitlines()[0]
            nth = seen[function, text]
            seen[function, text] += 1
            yield Mutant(file, function, text, nth, ast.unparse(mutated).splitlines()[0]), node, mutated


def files(root: Path) -> Iterator[str]:
    for package in PACKAGES:
        yield from sorted(str(path.relative_to(root)) for path in (root / package).rglob("*.py"))


def draw(root: Path, count: int, seed: int) -> list[Mutant]:
    """Mutants of all packages: half of them in equal shares of the packages, half by the packages' number of sites."""
    by_package: dict[str, list[Mutant]] = defaultdict(list)
    for file in files(root):
        parts = Path(file).parts
        package = "/".join(parts[:2]) if len(parts) > 2 else parts[0]
        by_package[package].extend(m for m, *_ in _candidates(file, ast.parse((root / file).read_text())))
    generator, drawn = random.Random(seed), list[Mutant]()
    sites = sum(map(len, by_package.values()))
    for package in sorted(by_package):
        found = by_package[package]
        share = count / 2 / len(by_package) + count / 2 * len(found) / sites
        drawn.extend(generator.sample(found, min(len(found), round(share))))
    return sorted(drawn, key=lambda mutant: (mutant.file, mutant.function, mutant.original, mutant.nth))


class _Planter(ast.NodeTransformer):
    def __init__(self, planted: dict[int, list[tuple[int, ast.AST]]]) -> None:
        self.planted = planted

    def visit(self, node: ast.AST) -> ast.AST:
        at = id(node)
        node = self.generic_visit(node)
        for number, mutated in self.planted.get(at, ()):
            test = ast.Call(ast.Name("__mutant__", ast.Load()), [ast.Constant(number)], [])
            if isinstance(node, ast.stmt):
                node = ast.If(test, [mutated], [node])
            else:
                node = ast.IfExp(test, mutated, node)
        return node


def plant(root: Path, mutants: list[Mutant]) -> list[int]:
    """Rewrite the files of the copy at `root`. Returns the positions of mutants whose code is no longer there."""
    wanted: dict[str, dict[Mutant, int]] = defaultdict(dict)
    for number, mutant in enumerate(mutants):
        wanted[mutant.file][mutant] = number
    gone = set(range(len(mutants)))
    for file, numbers in wanted.items():
        if not (root / file).is_file():
            continue
        tree = ast.parse((root / file).read_text())
        planted: dict[int, list[tuple[int, ast.AST]]] = defaultdict(list)
        for mutant, node, mutated in _candidates(file, tree):
            if mutant in numbers:
                # a copy: a mutated form shares children with the original
                kind = "exec" if isinstance(mutated, ast.stmt) else "eval"
                parsed = ast.parse(ast.unparse(mutated), mode=kind).body  # type: ignore[attr-defined]
                planted[id(node)].append((numbers[mutant], parsed[0] if isinstance(parsed, list) else parsed))
                gone.discard(numbers[mutant])
        changed = _Planter(planted).visit(tree)
        assert isinstance(changed, ast.Module)
        header = ast.parse(f"from {SWITCH} import reached as __mutant__").body[0]
        at = next(
            (
                place
                for place, statement in enumerate(changed.body)
                if not isinstance(statement, ast.Expr)
                and not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__")
            ),
            len(changed.body),
        )
        changed.body.insert(at, header)
        (root / file).write_text(ast.unparse(ast.fix_missing_locations(changed)) + "\n")
    return sorted(gone)


def write_list(path: Path, mutants: list[Mutant]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(Mutant.__slots__)
        writer.writerows([m.file, m.function, m.original, m.nth, m.mutated] for m in mutants)


def read_list(path: Path) -> list[Mutant]:
    with path.open(newline="") as stream:
        return [
            Mutant(row["file"], row["function"], row["original"], int(row["nth"]), row["mutated"])
            for row in csv.DictReader(stream)
        ]
