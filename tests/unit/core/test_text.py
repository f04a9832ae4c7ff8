"""Text of numbers, values, reasons and refusals; bounds of numbers; members that an object lacks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.core.bounds import NonNegative, Positive, UnitInterval, check_bounds
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.keys import in_config_keys
from suite.core.members import missing_members
from suite.core.reasons import headline
from suite.core.units import seconds, si
from tests.support.refusals import refused


def test_argument_names_become_keys_in_every_part_of_a_refusal() -> None:
    legal = "optimizer.clip_norm=1.0"
    expected = refused(InvalidRequest, "optimizer.clip_norm", rule="above 0, or null", legal=legal)
    with expected as caught, in_config_keys():
        raise InvalidRequest("clip_norm", None, "above 0, or None", "clip_norm=1.0")
    assert str(caught.value) == f"optimizer.clip_norm=null; rule: above 0, or null; legal: {legal}"
    with refused(UnknownName, "pruning.scope"), in_config_keys():
        raise UnknownName("scope", "bogus", ["weights"])


@dataclass
class Numbers:
    share: UnitInterval = 0.5
    size: Positive = 1.0
    time: NonNegative = 0.0
    free: float = -1.0

    def __post_init__(self) -> None:
        check_bounds(self)


def test_numbers_have_bounds() -> None:
    Numbers(share=0, size=1e-300, time=0)
    for name, values in {"share": (1.0, -0.1, math.nan), "size": (0.0, math.inf), "time": (-1, True)}.items():
        for value in values:
            with refused(InvalidRequest, name, value) as caught:
                Numbers(**{name: value})
            Numbers(**{name: float(caught.value.legal.partition("=")[2])})


class Reads(Protocol):
    wide: bool  # may be set by __init__

    def read(self, at: int) -> int: ...


class Reader:
    def read(self, at: int) -> int:
        return at


class Calls(Protocol):
    def __call__(self) -> int: ...


def test_object_needs_every_member_and_class_its_methods() -> None:
    assert missing_members(Reader, Reads) == []
    assert missing_members(Reader(), Reads) == ["wide"]
    assert missing_members(3, Reads) == ["read()", "wide"]
    assert missing_members(Reader, Calls) == ["__call__()"], "a class is not callable because its type is"


@given(st.floats(1e-9, 9e20))
def test_si_is_within_its_digits(value: float) -> None:
    number, _, prefix = si(value, "B").partition(" ")
    scale = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
    assert float(number) * scale[prefix.removesuffix("B")] == pytest.approx(value, rel=0.0051)
    assert float(number) < 1000


def test_seconds_are_minutes_and_hours_too() -> None:
    for value, text in (
        *((0.0, "0 s"), (8.2, "8 s"), (59.6, "1 min 00 s"), (125, "2 min 05 s")),
        *((3599.7, "1 h 00 min"), (3785, "1 h 03 min"), (-1, "0 s")),
    ):
        assert seconds(value) == text


# -- reasons ----------------------------------------------------------------------------------------------------------

OWN = """Traceback (most recent call last):
  File "/suites/suite/runner/ranks/rank.py", line 280, in main
    answer = getattr(rank, message.pop("do"))(**message)
  File "/home/me/mine/pile.py", line 12, in batch
    raise ValueError("an odd size")
ValueError: an odd size
  of many lines"""
CHAINED = f"""{OWN}

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/suites/suite/runner/ranks/rank.py", line 281, in main
    control.answer(event="done", **answer)
KeyError: 'seconds'"""
FAULT = "0F2 would be forward number 2 in flight, the schedule promised 1"
GRID = f"{FAULT}\nstage 0 | F3   [F2]\nstage 1 | [B0]"
PLACE = "(/home/me/mine/pile.py, line 12 in batch)"


def test_a_reason_in_one_line() -> None:
    for reason, expected in (
        ("a grid of 3 ranks; rule: one each; legal: 2", "a grid of 3 ranks; rule: one each; legal: 2"),
        (GRID, FAULT),
        (f"rank 0: {GRID}\n{OWN}", f"rank 0: {FAULT}"),
        (OWN, f"ValueError: an odd size {PLACE}"),
        (f"rank 1: {OWN}", f"rank 1: ValueError: an odd size {PLACE}"),
        (f"rank 1: {CHAINED}", f"rank 1: KeyError: 'seconds' {PLACE}"),
        ("\n  \n[rank1]: ended without a word\nlog", "ended without a word"),
        ("rank 0, 1 did not finish 'train' within 5 s\nlog\n----", "rank 0, 1 did not finish 'train' within 5 s"),
        ("Traceback (most recent call last):", "a traceback without its end"),
        ("", "nothing"),
        ("\n---\n", "nothing"),
    ):
        assert headline(reason, nothing="nothing") == expected
    cut = headline(f"rank {', '.join(map(str, range(200)))} did not finish", width=60)
    assert (len(cut), cut[:14], cut[-3:]) == (60, "rank 0, 1, 2, ", "...")
