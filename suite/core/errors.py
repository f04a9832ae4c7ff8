"""Exceptions of the suite.

    SuiteError
    ├── InvalidRequest         a request that cannot run, with its value, the rule and a legal value
    │   ├── UnknownName        a name that does not exist, with the nearest name
    │   ├── Unsupported        a combination that a system does not support
    │   └── DoesNotFit         a plan whose fullest device needs more memory than it has
    ├── MissingDependency      a package or program that is not installed
    ├── IllegalSchedule        a schedule that breaks a law of order, with the grid up to the fault
    ├── Diverged               training in which no loss scale keeps the gradients finite
    ├── RankError              a rank that failed
    │   ├── PeerEnded          a rank that waits for a rank that has ended
    │   └── RankTimeout        a rank that missed its deadline
    ├── Fault                  an unexpected exception of the user's or the suite's code, with its traceback
    ├── HiddenOutcome          a read of a printed outcome while outcomes are hidden
    └── DamagedRecord          a file in the record store that is not a record
        └── OtherSchema        a record of another schema version

InvalidRequest and MissingDependency become the outcome of a run (core.record.Outcome), so that no run is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from suite.core.values import format_typed

_LISTED = 160  # longest list of names, in characters, that a message shows in full
_NEAREST = 3  # names that a message shows of a longer list


class SuiteError(Exception):
    """Base class of the suite's exceptions."""


def _sentence(what: str, rule: str, legal: str) -> str:
    parts = (what, f"rule: {rule}" if rule else "", f"legal: {legal}" if legal else "")
    return "; ".join(filter(None, parts))


class InvalidRequest(SuiteError):
    """Request that cannot run. The message holds the setting with its value, the rule, and a legal value.

        InvalidRequest("batch.size", 7, rule="grid.data * batch.microbatch divides batch.size", legal="batch.size=8")
        InvalidRequest("a batch of 7 samples", rule="an even number")

    Args:
        key: Name of the setting, or without a value a phrase that describes the request.
        value: Value of the setting.
        rule: Rule that the value breaks.
        legal: A legal value.
        what: Subject of the message where `key=value` does not describe the request.

    Attributes:
        key: Name of the setting; empty for a phrase.
        value: Value of the setting; None for a phrase.
        keyed: Whether the message names config keys (suite.core.keys) rather than arguments.
    """

    keyed = False

    def __init__(self, key: str, value: object = ..., rule: str = "", legal: str = "", *, what: str = "") -> None:
        has_value = value is not ...
        self.key, self.value = (key, value) if has_value else ("", None)
        self.rule, self.legal = rule, legal
        super().__init__(_sentence(what or (f"{key}={format_typed(value)}" if has_value else key), rule, legal))

    def rephrase(self, change: Callable[[str], str]) -> None:
        """Apply `change` to the message, the key, the rule and the legal value."""
        self.args = (change(str(self)),)
        self.rule, self.legal = change(self.rule), change(self.legal)
        self.key = self.key and change(f"{self.key}=").rstrip("=")


# true if a rule is broken; what breaks it, the rule, and perhaps a legal value
Broken = tuple[Any, ...]


def refuse(rules: Iterable[Broken], kind: type[InvalidRequest] | type[DamagedRecord] | None = None) -> None:
    """Raise an error of a kind, by default InvalidRequest, for the first broken rule; later ones are not evaluated.

    refuse([(samples % 2, f"a batch of {samples} samples", "an even number", "8")])
    """
    for broken, what, rule, *legal in rules:
        if broken:
            raise (kind or InvalidRequest)(what, rule=rule, legal="".join(legal))


class UnknownName(InvalidRequest):
    """Name that is not one of `known`; the message suggests the nearest.

    `key` is the kind of the name; for a config key and for an argument it is the name itself.
    """

    def __init__(
        self, kind: str, name: object, known: Iterable[str], *, alike: float = 0.4, legal: str | None = None
    ) -> None:
        """
        Args:
            kind: What is named, for example `schedule`.
            name: Name that does not exist.
            known: Names that exist.
            alike: Least similarity (difflib ratio) of a suggested name.
            legal: Advice if no name is similar; by default the first of `known`.
        """
        known, name = sorted(known), str(name)
        near = get_close_matches(name, known, n=1, cutoff=alike)
        other = repr(known[0]) if legal is None and known else legal or ""
        names_key = kind in ("key", "config key") or kind.startswith("argument of ")
        legal = f"did you mean {near[0]!r}?" if near else other
        what = f"there is no {kind} named {name!r}"
        super().__init__(name if names_key else kind, name, _listed(name, known), legal, what=what)


def _listed(name: str, known: Sequence[str]) -> str:
    """All names, or the nearest ones of a long list."""
    if len(", ".join(known)) <= _LISTED:
        return f"one of {', '.join(known)}"
    nearest = get_close_matches(name, known, n=_NEAREST, cutoff=0.0)
    return f"one of {len(known)} names, such as {', '.join(nearest)}"


class Unsupported(InvalidRequest):
    """Combination that a system does not support; the page shows it as an outcome of its own."""


class DoesNotFit(InvalidRequest):
    """Too little memory, known before allocation. The outcome is `oom`, as in the papers' plots.

    Attributes:
        memory: Predicted bytes by kind, one value per stage; empty if unknown.
    """

    memory: dict[str, list[int]] = {}  # noqa: RUF012 - replaced, never changed


class HiddenOutcome(SuiteError):
    """Read of a printed outcome while outcomes are hidden; `claim` is the id of its row."""

    def __init__(self, claim: str) -> None:
        self.claim = claim
        super().__init__(
            f"the printed outcome of claim {claim} was read while outcomes are hidden; "
            "rule: measured and derived values read settings (plans.yaml, settings.yaml) alone"
        )


class MissingDependency(SuiteError):
    """Package, program or system that is not installed; `remedy` is the reason or the way to install it."""

    def __init__(self, name: str, remedy: str) -> None:
        super().__init__(f"{name} is not on this machine: {remedy}")


class IllegalSchedule(SuiteError):
    """Schedule that breaks a law of order. The message ends with the grid up to the fault.

    Args:
        message: The law that is broken, and the grid.
        rank: Pipeline rank of the op that breaks the law; None for a deadlock.
        ran: Ops that each rank had begun before the fault; empty if unknown.
    """

    def __init__(self, message: str, rank: int | None = None, ran: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.rank, self.ran = rank, tuple(ran)


class Fault(SuiteError):
    """Unexpected exception; the message is its traceback."""


class Diverged(SuiteError):
    """Training without finite gradients; an outcome of its own."""


class RankError(SuiteError):
    """Failure of a rank."""


class PeerEnded(RankError):
    """Rank that cannot continue because another rank may have ended; the cause is on that rank."""


class RankTimeout(RankError):
    """Rank that missed its deadline."""


class DamagedRecord(SuiteError):
    """File in the record store that cannot be read as a record."""

    def __init__(self, what: str, rule: str = "", legal: str = "") -> None:
        super().__init__(_sentence(what, rule, legal))


class OtherSchema(DamagedRecord):
    """Record of a schema version that this version of the suite does not read."""
