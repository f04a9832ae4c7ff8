"""A printed KEY=VALUE is read back as it was meant, by Hydra and by commands without a config."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from suite.core.words import for_reports, is_word, override, shell_line, value_of

VALUES = [
    "reports",
    "/a b/c",
    "1",
    "null",
    "True",
    "it's",
    'a "b"',
    "a,b",
    "back\\",
    "\\'",
    "a=b",
    "~x",
    "-1",
    " x",
    "é",
    "[1]",
]


@pytest.mark.parametrize("value", VALUES)
def test_values_are_read_back_as_text(value: str) -> None:
    word = override("reports", value)
    assert OverridesParser.create().parse_override(word).value() in (value,)
    assert str(OverridesParser.create().parse_override(word).value()) == value
    assert value_of(word) == value
    assert shlex.split(shell_line("run", [word])) == ["suite", "run", word]


def test_the_usual_folder_needs_no_word() -> None:
    assert for_reports("report", Path("reports")) == "suite report"
    assert for_reports("report", Path("a b")) == "suite report 'reports=a b'"


@pytest.mark.parametrize(
    ("argument", "word"),
    [
        ("a=b", True),
        ("+a.b=", True),
        ("~a", True),
        ("@x", True),
        ("a@b=c", True),
        ("--a=b", False),
        ("/a=b", False),
        ("a", False),
    ],
)
def test_words_are_told_from_flags_and_paths(argument: str, word: bool) -> None:
    assert is_word(argument) is word
