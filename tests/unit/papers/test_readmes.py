"""READMEs of the papers: every file that they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from suite.claims import load

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("paper", load.papers())
def test_readme_names_files_that_exist(paper: str) -> None:
    folder = ROOT / "suite/papers" / paper
    files = re.findall(r"`([\w./]+\.(?:py|yaml))`", (folder / "README.md").read_text(encoding="utf-8"))
    assert len(files) > 10
    assert [name for name in files if not (ROOT / name).is_file() and not (folder / name).is_file()] == []
