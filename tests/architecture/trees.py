"""Syntax trees of suite and baselines, parsed once per session."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def sources() -> dict[str, str]:
    """Text of each module by its path, such as suite/core/op.py."""
    files = [path for folder in ("suite", "baselines") for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}


@cache
def trees() -> dict[str, ast.Module]:
    """Syntax tree of each module by its path."""
    return {path: ast.parse(text) for path, text in sources().items()}
