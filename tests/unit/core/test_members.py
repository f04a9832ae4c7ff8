"""Members that an object lacks of a protocol are named; of a class only its methods."""

from __future__ import annotations

from typing import Protocol

from suite.core.errors import InvalidRequest
from suite.core.members import check_protocol, missing_members
from tests.support.refusals import refused


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


def test_class_is_not_callable_because_its_type_is() -> None:
    assert missing_members(Reader, Calls) == ["__call__()"]


def test_argument_that_lacks_members_is_refused_by_name() -> None:
    with refused(
        InvalidRequest, "reader", "3", rule="an object with read(), wide, as tests.unit.core.test_members.Reads has"
    ):
        check_protocol("reader", 3, Reads, "Reader()")
    with refused(InvalidRequest, "reader", "Reader", legal="reader=Reader()"):
        check_protocol("reader", Reader, Reads, "Reader()")
