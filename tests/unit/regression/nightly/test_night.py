"""Folders of nightly runs: damaged files, baselines, the lock."""

from __future__ import annotations

from pathlib import Path

from suite.core.errors import InvalidRequest
from suite.regression.nightly import night
from suite.regression.nightly.night import Night, NightlyStatus
from tests.support.refusals import refused


def write(folder: Path, name: str, status: str = "passed") -> None:
    night.write(folder, Night(name, "", "a" * 12, night.now(), status=NightlyStatus(status)))


def test_damaged_file_is_named_and_skipped(tmp_path: Path) -> None:
    assert night.read(tmp_path / "none") == ([], [])
    for name in "bac":
        write(tmp_path, name)
    file = tmp_path / "a" / night.FILE
    whole = file.read_text()
    for text in ("[]", "7", "{}", "\xff\x00", whole[:100], whole.replace("passed", "good"), whole.replace("[]", "3")):
        file.write_text(text, encoding="latin-1")
        nights, damaged = night.read(tmp_path)
        assert ([each.name for each in nights], damaged) == (["b", "c"], ["a"]), text
    file.write_text(whole.replace('"a"', '"../outside"'))
    assert [each.name for each in night.read(tmp_path)[0]] == ["b", "a", "c"], "the folder names the run"


def test_lock_is_exclusive(tmp_path: Path) -> None:
    with night.lock(tmp_path), refused(InvalidRequest, subject="another nightly run is running"), night.lock(tmp_path):
        pass
    with night.lock(tmp_path):
        pass
