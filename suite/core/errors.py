"""Decides which ways of failing the suite tells apart.

    SuiteError
    ├── Refused                what was asked for cannot run; says the numbers, the rule and a legal value
    │   ├── UnknownName        a name that nothing answers to; says the nearest one
    │   ├── Unsupported        a combination that a system does not have
    │   └── DoesNotFit         a plan whose fullest device would need more memory than it has
    ├── MissingDependency      a package or program that is not on this machine
    ├── IllegalSchedule        a program that breaks an order law; prints the grid with the culprit marked
    ├── Diverged               training broke down: no loss scale keeps its gradients finite
    ├── RankError              a rank did not do its part
    │   └── Late               it was not done at the deadline
    ├── Fault                  code raised what it should not, the user's or the suite's: a traceback
    └── DamagedRecord          a file in the store that is no record
        └── OtherSchema        a record, of another schema version

An error of the first two families is an outcome of a run, never a lost run: see core.record.Outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

_LISTED = 160  # characters of a list of names that is shown whole
_NEAREST = 3  # names of a longer one


class SuiteError(Exception):
    """Root of every error the suite raises on purpose."""


class Refused(SuiteError):
    """The request cannot run. `rule` is the law it breaks and `legal` a value that would pass.

    keyed: whether the settings that it names are those of a config (suite.core.keys), not arguments
    """

    keyed = False

    def __init__(self, what: str, *, rule: str = "", legal: str = "") -> None:
        parts = [what]
        if rule:
            parts.append(f"rule: {rule}")
        if legal:
            parts.append(f"legal: {legal}")
        super().__init__("; ".join(parts))


class UnknownName(Refused):
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


class Unsupported(Refused):
    """A combination that is refused by name (an outcome of its own on the page)."""


class DoesNotFit(Refused):
    """Too little memory, known before anything is allocated: an outcome of its own (oom), as in the papers' plots.

    memory: predicted bytes by kind, one per stage, where they are known"""

    memory: dict[str, list[int]] = {}  # noqa: RUF012 - replaced, never changed


class MissingDependency(SuiteError):
    """A package, program or system is not here. `remedy` says why, or what would bring it."""

    def __init__(self, name: str, remedy: str) -> None:
        super().__init__(f"{name} is not on this machine: {remedy}")


class IllegalSchedule(SuiteError):
    """A schedule broke a law. The message ends with the grid up to the fault."""


class Fault(SuiteError):
    """An exception that nobody raised on purpose, as its traceback."""


class Diverged(SuiteError):
    """Training broke down: an outcome of its own."""


class RankError(SuiteError):
    """A rank did not do its part."""


class PeerEnded(RankError):
    """A rank cannot go on because another rank may have ended. The cause is on that other rank."""


class Late(RankError):
    """A rank was not done at the deadline."""


class DamagedRecord(SuiteError):
    """A file in the record store cannot be read as a record."""


class OtherSchema(DamagedRecord):
    """A readable record whose schema version is not this suite's."""
