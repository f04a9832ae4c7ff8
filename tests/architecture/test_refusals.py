"""Refusals: tests compare the attributes of a refusal, not the wording of its message."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
REFUSALS = {"InvalidRequest", "Unsupported", "UnknownName", "DoesNotFit", "kind"}  # `kind`: a class that is a parameter
# `untouched` of test_checkpoint.py takes patterns that compare the settings of two engines, which have no key
PATTERNS = {"unit/engine/test_checkpoint.py": 1}


def worded(path: Path) -> int:
    """Calls of `pytest.raises` with a class of refusals and `match=`."""
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    raises = [call for call in calls if ast.unparse(call.func) == "pytest.raises" and call.args]
    return sum(
        any(keyword.arg == "match" for keyword in call.keywords)
        and any(getattr(node, "id", getattr(node, "attr", "")) in REFUSALS for node in ast.walk(call.args[0]))
        for call in raises
    )


def test_refusals_are_compared_by_their_attributes() -> None:
    counts = {path.relative_to(TESTS).as_posix(): worded(path) for path in sorted(TESTS.rglob("*.py"))}
    assert {name: count for name, count in counts.items() if count} == PATTERNS
