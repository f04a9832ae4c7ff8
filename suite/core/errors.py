"""Exceptions of the suite.

    SuiteError
    ├── InvalidRequest         what was asked for cannot run; says the numbers, the rule and a legal value
    │   ├── UnknownName        a name that nothing answers to; says the nearest one
    │   ├── Unsupported        a combination that a system does not have
    │   └── DoesNotFit         a plan whose fullest device would need more memory than it has
    ├── MissingDependency      a package or program that is not on this machine
    ├── IllegalSchedule        a program that breaks an order law; prints the grid with the culprit marked
    ├── Diverged               training broke down: no loss scale keeps its gradients finite
    ├── RankError              a rank did not do its part
    │   └── RankTimeout               it was not done at the deadline
    ├── Fault                  code raised what it should not, the user's or the suite's: a traceback
    ├── HiddenOutcome          a printed outcome that was read while outcomes are hidden
    └── DamagedRecord          a file in the store that is no record
        └── OtherSchema        a record, of another schema version

An error of the first two families is an outcome of a run, never a lost run: see core.record.Outcome.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches

from suite.core.values import typed

_LISTED = 160  # characters of a list of names that is shown whole
_NEAREST = 3  # names of a longer one
_NAMED = re.compile(r"there is no (?:(?:config key|argument of \S+)|(?P<key>[\w.]+)) named '(?P<name>[^']*)'")
_ABSENT = re.compile(r"there is no (?P<key>[\w.]+)(?=;|$)")
_SETTING = re.compile(r"(?P<key>[A-Za-z_]\w*(?:\.\w+)*)=(?P<value>[^\s;:]*)")


class SuiteError(Exception):
    """Root of every error the suite raises on purpose."""


class InvalidRequest(SuiteError):
    """The request cannot run. Its text is the setting with its value, the rule that it breaks, and a legal value.

        InvalidRequest("batch.size", 7, rule="grid.data * batch.microbatch divides batch.size", legal="batch.size=8")
        InvalidRequest("a batch of 7 samples", rule="an even number")

    key: the setting; without a value, a sentence in its place
    what: the subject of the text where `key=value` does not describe it
    keyed: whether the settings that it names are those of a config (suite.core.keys), not arguments
    """

    keyed = False

    def __init__(self, key: str, value: object = ..., rule: str = "", legal: str = "", *, what: str = "") -> None:
        has_value = value is not ...
        self._setting: tuple[str, object] | None = (key, value) if has_value else None
        self.rule, self.legal = rule, legal
        parts = [what or (f"{key}={typed(value)}" if has_value else key)]
        if rule:
            parts.append(f"rule: {rule}")
        if legal:
            parts.append(f"legal: {legal}")
        super().__init__("; ".join(parts))

    @property
    def key(self) -> str:
        """The setting, as far as it was given or the text begins with it; else empty."""
        return self._setting[0] if self._setting else _setting_of(str(self))[0]

    @property
    def value(self) -> object:
        """The value of the setting; as text where only the text has it, and None where nothing has."""
        return self._setting[1] if self._setting else _setting_of(str(self))[1]

    def rephrase(self, change: Callable[[str], str]) -> None:
        """Replaces words in the text, the setting, the rule and the legal value."""
        self.args = (change(str(self)),)
        self.rule, self.legal = change(self.rule), change(self.legal)
        if self._setting:
            key, value = self._setting
            self._setting = change(f"{key}=").rstrip("="), value


def _setting_of(text: str) -> tuple[str, str | None]:
    """The setting and the value with which a refusal's text begins, which may lack either."""
    if match := _NAMED.match(text):
        return match["key"] or match["name"], match["name"]
    if absent := _ABSENT.match(text):
        return absent["key"], None
    setting = _SETTING.match(text)
    return (setting["key"], setting["value"]) if setting else ("", None)


class UnknownName(InvalidRequest):
    """`name` is not one of `known`; the message names the nearest."""

    def __init__(
        self, kind: str, name: object, known: Iterable[str], *, alike: float = 0.4, legal: str | None = None
    ) -> None:
        """
        alike: the least ratio of common characters at which a name is the nearest
        legal: the advice where no name is near; by default the first of `known`
        """
        known, name = sorted(known), str(name)
        near = get_close_matches(name, known, n=1, cutoff=alike)
        other = repr(known[0]) if legal is None and known else legal or ""
        super().__init__(
            f"there is no {kind} named {name!r}",
            rule=_listed(name, known),
            legal=f"did you mean {near[0]!r}?" if near else other,
        )


def _listed(name: str, known: Sequence[str]) -> str:
    """The names, or of many the nearest."""
    if len(", ".join(known)) <= _LISTED:
        return f"one of {', '.join(known)}"
    nearest = get_close_matches(name, known, n=_NEAREST, cutoff=0.0)
    return f"one of {len(known)} names, such as {', '.join(nearest)}"


class Unsupported(InvalidRequest):
    """A combination that is refused by name (an outcome of its own on the page)."""


class DoesNotFit(InvalidRequest):
    """Too little memory, known before anything is allocated: an outcome of its own (oom), as in the papers' plots.

    memory: predicted bytes by kind, one per stage, where they are known"""

    memory: dict[str, list[int]] = {}  # noqa: RUF012 - replaced, never changed


class HiddenOutcome(SuiteError):
    """A run read what a paper prints while printed outcomes are hidden. claim: the id of its row"""

    def __init__(self, claim: str) -> None:
        self.claim = claim
        super().__init__(
            f"the printed outcome of claim {claim} was read while outcomes are hidden; "
            "rule: measured and derived values read settings (plans.yaml, settings.yaml) alone"
        )


class MissingDependency(SuiteError):
    """A package, program or system is not here. `remedy` says why, or what would bring it."""

    def __init__(self, name: str, remedy: str) -> None:
        super().__init__(f"{name} is not on this machine: {remedy}")


class IllegalSchedule(SuiteError):
    """A schedule broke a law. The message ends with the grid up to the fault."""


class Fault(SuiteError):
    """Text of an unexpected exception: its traceback."""


class Diverged(SuiteError):
    """Training broke down: an outcome of its own."""


class RankError(SuiteError):
    """A rank did not do its part."""


class PeerEnded(RankError):
    """A rank cannot go on because another rank may have ended. The cause is on that other rank."""


class RankTimeout(RankError):
    """A rank was not done at the deadline."""


class DamagedRecord(SuiteError):
    """A file in the record store cannot be read as a record."""


class OtherSchema(DamagedRecord):
    """A readable record whose schema version is not this suite's."""
