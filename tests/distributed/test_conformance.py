"""Laws on real ranks: every system of conf/system. test_document_examples.py does it for the system of a user."""

from __future__ import annotations

import pytest

from suite.conformance.laws import LawVerdict, examine
from suite.conformance.system_under_test import SystemUnderTest
from tests.support.systems import every_system


@pytest.mark.exhaustive
def test_every_system_keeps_every_law() -> None:
    broken = {}
    for name, overrides in every_system().items():
        results = examine(SystemUnderTest(overrides)) if name != "pytorch" else ()  # the reference
        reasons = {result.law.name: result.reason for result in results if result.verdict is LawVerdict.BROKEN}
        if reasons and "is not installed" not in reasons.get("composes", ""):
            broken[name] = reasons
    assert not broken
