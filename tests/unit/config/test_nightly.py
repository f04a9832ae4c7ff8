"""Settings of a nightly run; wrong ones are refused by their key."""

from __future__ import annotations

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
    alone = "0: overrides alone, without reports, which nightly runs set"
    for override, key, rule in (
        ("repeats=0", "repeats", "greater than or equal to 1"),
        ("level=.nan", "level", "a finite number"),
        ("repeated=['a \"b']", "repeated", "0: overrides separated by spaces, with every quote closed"),
        *(("repeated=['reports=x']", "repeated", alone), ("repeated=['-m system=axonn']", "repeated", alone)),
        ("repeats=[", "'repeats", "VALUE is YAML"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            nightly.read([override])
        assert caught.value.rule == rule
        assert str(caught.value).startswith(key)
    with refused(InvalidRequest, "repeat", "repeat", legal="did you mean 'repeats'?"):
        nightly.read(["repeat=3"])
