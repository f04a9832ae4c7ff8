"""Settings of a nightly run; all others are refused with a legal value."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.core.errors import InvalidRequest
from suite.regression.nightly import settings


def test_the_file_in_the_house_is_whole() -> None:
    found = settings.read([])
    assert found.repeats >= 10
    assert found.commands == (*found.repeated, *found.once)
    assert settings.read(["repeats=3", "baseline=2026-11-01"]).baseline == "2026-11-01"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("repeats=0", "repeats=0; rule: a whole number from 1 to 1000; legal: repeats=1"),
        ("repeats=1.5", "a whole number"),
        ("repeats=yes", "a whole number"),
        ("threshold=0", "a number from 0.001 to 10"),
        ("level=.nan", "a number from"),
        ("repeated=3", "a list of text"),
        ("repeated=['reports=x']", "holds reports=x"),
        ("repeated=['-m system=axonn']", "holds -m"),
        ("repeated=['a \"b']", "overrides as in a shell"),
        ("reports=", "a folder"),
        ("baseline=3", "a night, a folder or null"),
        ("repeat=3", "did you mean 'repeats'"),
        ("repeats", "KEY=VALUE"),
        ("repeats=[", "VALUE is YAML"),
    ],
)
def test_what_is_no_setting_is_refused(override: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message.replace("[", r"\[")):
        settings.read([override])


def test_a_night_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="0 command lines"):
        settings.read(["repeated=[]", "once=[]"])


@pytest.mark.parametrize("text", ["- 1", "repeats: 3", "{", "\x00"])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "nightly.yaml").write_text(text)
    with pytest.raises(InvalidRequest):
        settings.read([], tmp_path / "nightly.yaml")
