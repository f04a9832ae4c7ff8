"""Settings of a nightly run; wrong ones are refused by their key."""

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


def test_illegal_setting_is_refused() -> None:
    alone = "overrides alone, without reports, which nightly runs set"
    for override, key, rule in (
        *(("repeats=0", "repeats", "at least 1"), ("repeats=1001", "repeats", "at most 1000")),
        *(("repeats=1.5", "repeats", "a whole number"), ("repeats=yes", "repeats", "a whole number")),
        *(("threshold=0", "threshold", "at least 0.001"), ("level=.nan", "level", "a finite number")),
        *(("repeated=3", "repeated", "a list"), ("repeated=['a \"b']", "repeated", "overrides quoted as in a shell")),
        *(("repeated=['reports=x']", "repeated", alone), ("repeated=['-m system=axonn']", "repeated", alone)),
        *(("reports=", "reports", "text"), ("baseline=3", "baseline", "text or null")),
        *(("repeats", "'repeats'", "KEY=VALUE"), ("repeats=[", "'repeats", "VALUE is YAML")),
    ):
        with pytest.raises(InvalidRequest) as caught:
            nightly.read([override])
        assert caught.value.rule == rule
        assert str(caught.value).startswith(key)
    with refused(InvalidRequest, "repeat", "repeat", legal="did you mean 'repeats'?"):
        nightly.read(["repeat=3"])
    with refused(InvalidRequest, subject="0 command lines"):
        nightly.read(["repeated=[]", "once=[]"])


def test_damaged_file_is_refused(tmp_path: Path) -> None:
    for text in ("- 1", "repeats: 3", "{", "\x00"):
        (tmp_path / "nightly.yaml").write_text(text)
        with pytest.raises(InvalidRequest):
            nightly.read([], tmp_path / "nightly.yaml")
