"""Print what a change weighs: code lines of suite, baselines and tests by package, and test seconds by folder.

    python .ci/weight.py SECONDS            # differences from the newest record of another tree in .ci/weight.csv
    python .ci/weight.py SECONDS --record   # add a record of this tree

SECONDS is what `pytest --seconds=FILE` wrote, or an empty word. Code lines are lines of Python without blanks, comments
and docstrings. Seconds are processor seconds of the ordinary run, divided by those of a reference loop.
"""

from __future__ import annotations

import ast
import csv
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDS = Path(__file__).with_name("weight.csv")
_WITHOUT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def _docstrings(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def code_lines(text: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _WITHOUT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - set(_docstrings(ast.parse(text))))


def lines_by_package() -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for top in ("suite", "baselines", "tests"):
        for path in (ROOT / top).rglob("*.py"):
            parts = path.relative_to(ROOT).parts
            depth = 3 if parts[:2] == ("tests", "unit") else 2
            lines = code_lines(path.read_text())
            for package in {top, "/".join(parts[: min(depth, len(parts) - 1)])}:
                found[package] += lines
    return dict(found)


def seconds_by_folder(path: str) -> dict[str, float]:
    sys.path.insert(0, str(ROOT))
    from tests.support.seconds import REFERENCE, by_folder, reference

    rows = [row.split("\t") for row in Path(path).read_text().splitlines()]
    scale = REFERENCE / reference()
    return {name: value * scale for name, value in by_folder({name: float(value) for value, name in rows}).items()}


def main(seconds: str, record: bool) -> None:
    now = {("lines", name): value for name, value in lines_by_package().items()}
    if seconds:
        by_name = seconds_by_folder(seconds)
        now |= {("seconds", name): value for name, value in (*by_name.items(), ("all tests", sum(by_name.values())))}
    records: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    with RECORDS.open(newline="") as stream:
        for row in csv.DictReader(stream):
            records[row["record"]][row["kind"], row["name"]] = float(row["value"])
    lines = {key: value for key, value in now.items() if key[0] == "lines"}
    others = [
        one for one in records.values() if {key: value for key, value in one.items() if key[0] == "lines"} != lines
    ]
    before = others[-1] if others else {}
    for kind in ("lines", "seconds"):
        for key in sorted({key for key in (*now, *before) if key[0] == kind and (now.keys() & {key} or seconds)}):
            change = round(now.get(key, 0)) - round(before.get(key, 0))
            if change and (kind == "lines" or abs(change) >= 1):
                print(f"{kind:8} {key[1]:24} {before.get(key, 0):8.0f} {now.get(key, 0):8.0f} {change:+8}")
    if record:
        with RECORDS.open("a", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerows([len(records) + 1, *key, round(value, 1)] for key, value in sorted(now.items()))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "", "--record" in sys.argv)
