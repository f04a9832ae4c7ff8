"""Question of the what-if page: KEY=VALUE words, checked against the keys of a view.

A link, a saved view and a command line hold the same words, so that all three compute the same answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.values import Json
from suite.core.words import value_of


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a view.

    Attributes:
        kind: whole (a whole number), number, choice (one of `choices`) or text.
        default: Value without a word.
        help: One sentence for the page and for the help of the command.
        choices: Legal values of a choice.
        group: Group of the catalogue that holds the choices, whose arguments `name.argument=value` sets; empty: none.
        least, most: Bounds of a number.
        rare: Whether the page folds the key away.
    """

    name: str
    kind: Literal["whole", "number", "choice", "text"]
    default: str
    help: str
    choices: tuple[str, ...] = ()
    group: str = ""
    least: float = 0
    most: float = 1e6
    rare: bool = False

    @property
    def optional(self) -> bool:
        """Whether an empty value is legal."""
        return not self.default

    def check(self, text: str) -> None:
        """Raise InvalidRequest for an illegal value, and UnknownName for an unknown choice."""
        if self.kind == "choice" and text not in self.choices and not (self.optional and not text):
            raise UnknownName(self.name, text, self.choices)
        if self.kind in ("choice", "text") or (self.optional and not text):
            return
        whole = self.kind == "whole"
        number = _number(text) if not whole or text.isdecimal() else None
        if number is None or not self.least <= number <= self.most:
            rule = f"a {'whole ' if whole else ''}number from {self.least:g} to {self.most:g}"
            raise InvalidRequest(self.name, text, rule=rule, legal=f"{self.name}={self.default or f'{self.least:g}'}")


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None


@dataclass(frozen=True, slots=True)
class ViewQuestion:
    """Values of the keys of a view, as text."""

    keys: Sequence[Key]
    values: Mapping[str, str]

    def text(self, key: str) -> str:
        """The value of a key, or its default."""
        return self.values.get(key) or next(each.default for each in self.keys if each.name == key)

    def whole(self, key: str) -> int:
        return int(self.text(key))

    def number(self, key: str) -> float:
        return float(self.text(key))

    def arguments(self, key: str) -> dict[str, Json]:
        """The words `key.argument=value`, with numbers, true, false and null as such."""
        start = f"{key}."
        return {name.removeprefix(start): _plain(text) for name, text in self.values.items() if name.startswith(start)}

    def changed(self, **values: float) -> ViewQuestion:
        """The question with other numbers."""
        return replace(self, values={**self.values, **{name: str(value) for name, value in values.items()}})

    @property
    def words(self) -> list[str]:
        """The words that differ from the defaults, in the order of the keys."""
        defaults = {each.name: each.default for each in self.keys}
        order = [each.name for each in self.keys]
        named = sorted(self.values, key=lambda name: (order.index(name.partition(".")[0]), name))
        return [f"{name}={self.values[name]}" for name in named if self.values[name] != defaults.get(name)]


def _plain(text: str) -> Json:
    try:
        value: Json = json.loads(text)
    except ValueError:
        return text
    return value


def read(keys: Sequence[Key], words: Iterable[str]) -> ViewQuestion:
    """The question of the words KEY=VALUE; the last word of a key counts.

    Raises UnknownName for an unknown key or choice, and InvalidRequest for an illegal value.
    """
    known = {each.name: each for each in keys}
    values: dict[str, str] = {}
    for word in words:
        name = word.partition("=")[0]
        key = known.get(name.partition(".")[0])
        if key is None or ("." in name and not key.group):
            raise UnknownName("key", name, known)
        values[name] = value_of(word)
        if "." not in name:
            key.check(values[name])
    return ViewQuestion(keys, values)
