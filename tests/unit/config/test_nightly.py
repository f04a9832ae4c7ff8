"""Settings of a nightly run; others are refused with a legal value."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.config import nightly
from suite.core.errors import InvalidRequest
from tests.support.refusals import refused


def test_nightly_yaml_is_complete() -> None:
    settings = nightly.read([])
    assert settings.repeats >= 10
    assert settings.commands == [*settings.repeated, *settings.once]
    assert nightly.read(["repeats=3", "baseline=2026-11-01"]).baseline == "2026-11-01"


@pytest.mark.parametrize(
    ("override", "key", "rule"),
    [
        ("repeats=0", "repeats", "at least 1"),
        ("repeats=1001", "repeats", "at most 1000"),
        ("repeats=1.5", "repeats", "a whole number"),
        ("repeats=yes", "repeats", "a whole number"),
        ("threshold=0", "threshold", "at least 0.001"),
        ("level=.nan", "level", "a finite number"),
        ("repeated=3", "repeated", "a list"),
        ("repeated=['reports=x']", "repeated", "overrides alone, without reports, which nightly runs set"),
        ("repeated=['-m system=axonn']", "repeated", "overrides alone, without reports, which nightly runs set"),
        ("repeated=['a \"b']", "repeated", "overrides quoted as in a shell"),
        ("reports=", "reports", "text"),
        ("baseline=3", "baseline", "text, or null"),
        ("repeats", "'repeats'", "KEY=VALUE"),
        ("repeats=[", "'repeats", "VALUE is YAML"),
    ],
)
def test_illegal_setting_is_refused(override: str, key: str, rule: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        nightly.read([override])
    assert caught.value.rule == rule
    assert str(caught.value).startswith(key)


def test_misspelled_setting_gets_the_nearest_name() -> None:
    with refused(InvalidRequest, "repeat", "repeat", legal="did you mean 'repeats'?"):
        nightly.read(["repeat=3"])


def test_nightly_run_without_commands_is_refused() -> None:
    with refused(InvalidRequest, subject="0 command lines", rule="repeated or once names one"):
        nightly.read(["repeated=[]", "once=[]"])


@pytest.mark.parametrize("text", ["- 1", "repeats: 3", "{", "\x00"])
def test_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "nightly.yaml").write_text(text)
    with pytest.raises(InvalidRequest):
        nightly.read([], tmp_path / "nightly.yaml")
