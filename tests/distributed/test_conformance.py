"""Laws on real ranks: every system of conf/system. test_document_examples.py does it for the system of a user."""

from __future__ import annotations

import pytest

from suite.config.compose import groups
from suite.conformance.laws import LawVerdict, examine
from suite.conformance.system_under_test import SystemUnderTest


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
