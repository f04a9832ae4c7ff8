"""Reads of an answer: constants, plans and graphs are noted, and cached values repeat their reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suite.papers.common import trace
from suite.simulate.cost.efficiency import Efficiency

EFFICIENCY = Efficiency(
    "mine", 0.5, adapters=2, fitted={"products": ("a.x",)}, chosen={"products": ("a.y",), "lane": ("a.z",)}
)


def test_constant_is_noted_when_it_is_read() -> None:
    efficiency = trace.trace_efficiency(EFFICIENCY)
    with trace.record_reads() as reads:
        assert efficiency.products == 0.5
        assert efficiency.adapters == 2
        assert efficiency.name == "mine"
    assert reads == {"efficiency.mine.products", "efficiency.mine.adapters"}
    assert efficiency.network == EFFICIENCY.network
    assert reads == {"efficiency.mine.products", "efficiency.mine.adapters"}


def test_traced_efficiency_stays_traced_when_a_constant_is_replaced() -> None:
    changed = replace(trace.trace_efficiency(EFFICIENCY), network=0.25)
    with trace.record_reads() as reads:
        assert changed.network == 0.25
    assert reads == {"efficiency.mine.network"}


def test_remembered_value_is_read_with_all_that_it_read() -> None:
    memory: trace.TracedCache[str, float] = trace.TracedCache()
    efficiency, calls = trace.trace_efficiency(EFFICIENCY), []

    def compute() -> float:
        calls.append(1)
        trace.read("plan.axonn")
        return efficiency.products

    with trace.record_reads() as first:
        assert memory.get("a", compute) == 0.5
    with trace.record_reads() as second:
        assert memory.get("a", compute) == 0.5
    assert first == second == {"efficiency.mine.products", "plan.axonn"}
    assert len(calls) == 1


def test_inner_reads_count_for_the_outer_answer() -> None:
    with trace.record_reads() as outer:
        trace.read("a")
        with trace.record_reads() as inner:
            trace.read("b")
        assert inner == {"b"}
    assert outer == {"a", "b"}
    trace.read("c")
    assert outer == {"a", "b"}


def test_failed_answer_leaves_no_recording_behind() -> None:
    with pytest.raises(ValueError, match="broken"), trace.record_reads():
        raise ValueError("broken")
    with trace.record_reads() as reads:
        trace.read("a")
    assert reads == {"a"}


def test_claims_of_a_constant_are_those_fitted_and_chosen() -> None:
    assert trace.fitted_to(EFFICIENCY, "products") == ("a.x", "a.y")
    assert trace.fitted_to(EFFICIENCY, "lane") == ("a.z",)
    assert trace.fitted_to(EFFICIENCY, "network") == ()
