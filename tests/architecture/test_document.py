"""Checks that ARCHITECTURE.md names modules and packages that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_every_path_in_the_document_exists() -> None:
    paths = re.findall(r"`((?:suite|baselines|conf|docs|tests)(?:/[\w./]*)?)`", TEXT)
    assert len(paths) >= 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
