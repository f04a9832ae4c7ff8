"""Laws on real ranks: the system of docs/extending.md and every system of conf/system."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from suite.config.compose import groups
from suite.conformance.laws import LawVerdict, examine
from suite.conformance.system_under_test import SystemUnderTest
from suite.core.exit_codes import Exit
from tests.support.ranks import ROOT
from tests.support.tools import needs

OWN = (ROOT / "docs/extending.md").read_text().partition("## Add a system")[2].partition("\n## ")[0]
FILES = dict(re.findall(r"`(mine/[\w/.]+)`(?:(?!```).)*?```\w+\n(.*?)```", OWN, flags=re.S))
PRINTED_LAWS = re.findall(r"^    (law .*)$", OWN, flags=re.M)


def without_seconds(line: str) -> str:
    """A printed line without its duration."""
    return re.sub(r" +\d+\.\d s", " s", line)


FEW, RANKS = {"composes", "order", "versions", "gradients"}, {"replay", "clocks", "resume", "mpi", "killed"}


@pytest.mark.slow("four laws of a system, two on real ranks")
@pytest.mark.parametrize("laws", [FEW, pytest.param(FEW | RANKS, marks=pytest.mark.exhaustive)], ids=["few", "all"])
def test_documented_system_keeps_every_law(laws: set[str], tmp_path: Path) -> None:
    """Run a documented command in the folder with `mine`."""
    needs("mpiexec")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    selection = ["--laws", ",".join(sorted(laws))] if laws == FEW else []
    line = [sys.executable, "-m", "suite", "conformance", "system=waves", "launch.python_path=[mine]", *selection]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert process.returncode == Exit.OK, process.stdout + process.stderr
    lines = process.stdout.splitlines()
    assert lines[0] == "waves: GPipe in waves of a few microbatches"
    assert "schedule  waves.Waves(wave=2); a flush, one update per batch" in lines
    kept_laws = {line[8:18].strip() for line in lines if "  kept  " in line}
    assert kept_laws == laws
    rest = "" if laws == FEW else "4 do not apply, "
    assert lines[-1].startswith(f"waves: {len(laws)} laws kept, {rest}")
    printed = {(text := without_seconds(line))[8:18].strip(): text for line in lines if line.startswith("law ")}
    documented = {(text := without_seconds(line))[8:18].strip(): text for line in PRINTED_LAWS}
    assert len(documented) == 3
    for law in documented.keys() & laws:  # "..." in the document stands for omitted words
        assert all(part in printed[law] for part in documented[law].split("...")), printed[law]
    assert not list(tmp_path.glob("reports*")), "no reports are left"


@pytest.mark.exhaustive
@pytest.mark.parametrize("system", [name for name in groups()["system"] if name != "pytorch"])  # the reference
def test_every_system_keeps_every_law(system: str) -> None:
    broken = {
        law.law.name: law.reason
        for law in examine(SystemUnderTest((f"system={system}",)))
        if law.verdict is LawVerdict.BROKEN
    }
    if "is not installed" in broken.get("composes", ""):
        pytest.skip(broken["composes"])
    assert not broken
