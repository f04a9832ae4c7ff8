"""Mutation testing: small faults, one at a time in a copy of the tree, and the tests that notice them.

    python -m tests.mutants --count 20 --seed 1 suite/engine baselines   # 20 faults drawn from these folders

A fault is another comparison, `and` for `or`, a negated condition, another integer, `-` for `+`, or a dropped call,
assignment or `raise`. For each of them the tests of its package run in a worktree of HEAD, then the laws, until one
fails. A line per fault says `killed` with the test, or `lived`. Code that numba or Triton compiles stays as it is.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 900.0  # seconds after which the tests of a fault count as hanging, which kills it
_COMPILED = re.compile(r"jit|triton|vectorize")
_PAIRS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult},
}


def mutated(node: ast.AST) -> ast.AST | None:
    """The node with a fault; None where it has no place for one."""
    match node:
        case ast.Compare(left, [op, *ops], comparators):
            return ast.Compare(left, [_PAIRS[type(op)](), *ops], comparators)  # type: ignore[list-item]
        case ast.BoolOp(op, values):
            return ast.BoolOp(_PAIRS[type(op)](), values)  # type: ignore[arg-type]
        case ast.BinOp(left, op, right) if type(op) in _PAIRS:
            return ast.BinOp(left, _PAIRS[type(op)](), right)  # type: ignore[arg-type]
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.Constant(value) if type(value) is int:
            return ast.Constant(value + 1)
        case ast.If(test, body, orelse):
            return ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.While():
            return ast.Pass()
        case ast.Raise() | ast.AugAssign() | ast.Expr(ast.Call()) | ast.Assign([ast.Attribute() | ast.Subscript()]):
            return ast.Pass()
    return None


class Planter(ast.NodeTransformer):
    """Counts the places of faults within functions, and plants the fault of one number."""

    def __init__(self, number: int = -1) -> None:
        self.number, self.places, self.said, self.functions = number, 0, "", 0

    def visit(self, node: ast.AST) -> ast.AST:
        if self.functions and (fault := mutated(node)) is not None:
            self.places += 1
            if self.places - 1 == self.number:
                one, other = (ast.unparse(each).partition("\n")[0] for each in (node, fault))
                self.said = f"{node.lineno}: {one} -> {other}"  # type: ignore[attr-defined]
                return fault
        if isinstance(node, ast.JoinedStr | ast.match_case | ast.Assert | ast.AnnAssign):
            return node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return self.generic_visit(node)
        if not any(_COMPILED.search(ast.unparse(each)) for each in node.decorator_list):
            self.functions += 1
            node.body = [self.visit(statement) for statement in node.body]  # type: ignore[misc]
            self.functions -= 1
        return node


def places(folders: list[str]) -> Iterator[tuple[str, int]]:
    """Every file with the numbers of its places."""
    for file in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        planter = Planter()
        planter.visit(ast.parse(file.read_text()))
        yield from ((str(file.relative_to(ROOT)), number) for number in range(planter.places))


def first_failure(copy: Path, file: str) -> str:
    """The first test that fails in the copy: those of the file's package, then the laws. Empty where none does."""
    package = Path(file).parts[1 if file.startswith("suite") else 0]
    tests = [name for name in (f"tests/unit/{package}", "tests/laws") if (copy / name).is_dir()]
    line = [sys.executable, "-m", "pytest", "-x", "--tb=no", "-rfE", *tests]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    env = {**os.environ, "PYTHONPATH": str(copy)}
    process = subprocess.Popen(line, cwd=copy, env=env, start_new_session=True, **pipes)  # type: ignore[call-overload]
    try:
        said = process.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"no end after {LIMIT:g} s"
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", said, flags=re.M)
    return found[1] if found else said[-300:] if process.returncode else ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="*", default=["suite", "baselines"])
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    drawn = random.Random(options.seed).sample([*places(options.folders)], options.count)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "copy"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(copy)], cwd=ROOT, check=True)
        try:
            for file, number in sorted(drawn):
                source, planter = (copy / file).read_text(), Planter(number)
                tree = planter.visit(ast.parse(source))
                (copy / file).write_text(ast.unparse(ast.fix_missing_locations(tree)))
                test = first_failure(copy, file)
                (copy / file).write_text(source)
                print(f"killed by {test}" if test else "lived", f"  {file}:{planter.said}", flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(copy)], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
