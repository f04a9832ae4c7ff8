"""Values are shown on one line, and numbers are told from other values."""

from __future__ import annotations

import pytest

from suite.core.values import format_typed, format_value, is_number


def test_value_is_shown_on_one_line() -> None:
    assert format_value("x") == "'x'"
    assert len(format_value(list(range(1000)))) == 100
    assert "\n" not in format_value(type("Odd", (), {"__repr__": lambda self: "a\nb"})())


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), (True, "true"), ("a  b", "a b"), (1.5, "1.5"), (["x"], "['x']")]
)
def test_value_is_typed_as_on_a_command_line(value: object, text: str) -> None:
    assert format_typed(value) == text


def test_numbers_are_in_the_range_of_floats() -> None:
    assert all(map(is_number, (0, -1.5, 10**300)))
    assert not any(map(is_number, (True, "1", None, 10**400)))
