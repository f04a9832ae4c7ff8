"""Schedules by the names of their files in conf/schedule."""

from __future__ import annotations

from typing import Any

import pytest

from suite.config.plugins import build
from suite.config.typed_yaml import read_typed
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.resources import conf_folder
from suite.schedule.by_name import NAMED, schedule_by_name
from tests.support.refusals import refused


@pytest.mark.parametrize("name", NAMED)
def test_schedule_by_name_is_that_of_its_file(name: str) -> None:
    settings = read_typed(dict[str, Any], conf_folder() / "schedule" / f"{name}.yaml")
    assert schedule_by_name(name, chunks=2) == build(settings)


def test_one_interleaved_chunk_is_1f1b() -> None:
    assert schedule_by_name("interleaved") == schedule_by_name("one_f_one_b")
    assert schedule_by_name("interleaved", 4) != schedule_by_name("interleaved", 2)


def test_unknown_schedule_and_number_of_chunks_are_refused() -> None:
    with refused(UnknownName, "schedule", "zb_h3", legal="zb_h2"):
        schedule_by_name("zb_h3")
    with refused(InvalidRequest, "chunks", legal="chunks=2"):
        schedule_by_name("interleaved", 0)
