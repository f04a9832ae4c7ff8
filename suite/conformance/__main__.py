"""Decides what `python -m suite.conformance` does: it asks a system every law that applies to it, and says what it met.

    python -m suite.conformance system=waves 'launch.python_path=[mine]'
    python -m suite.conformance system=waves 'launch.python_path=[mine]' schedule.wave=4 --laws order,gradients

Ends with 0 where every law that applies is kept, 1 where one is broken, 2 where there is no such system.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from suite.bench.interrupt import ending_ranks
from suite.conformance.laws import LAWS, Finding, Verdict, examine
from suite.conformance.subject import Subject
from suite.core.errors import SuiteError, UnknownName
from suite.core.exits import Exit

NAMES = tuple(law.name for law in LAWS)


def main(arguments: Sequence[str]) -> int:
    try:
        overrides, chosen = read(arguments)
        subject = Subject(tuple(overrides))
        for line in subject.parts():
            print(line)
    except SuiteError as error:
        print(f"refused: {error}", file=sys.stderr)
        return Exit.NOTHING
    found: list[Finding] = []
    with ending_ranks():
        for finding in examine(subject, chosen):
            print(told(finding), flush=True)
            found.append(finding)
    print(summary(subject.name, found))
    return Exit.SOME_FAILED if any(one.verdict is Verdict.BROKEN for one in found) else Exit.OK


def read(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The overrides, and the laws that are asked. Raises UnknownName."""
    overrides, chosen, rest = [], [], iter(arguments)
    for argument in rest:
        name, _, value = argument.partition("=")
        if name == "--laws":
            chosen += (value or next(rest, "")).split(",")
        else:
            overrides.append(argument)
    for name in chosen:
        if name not in NAMES:
            raise UnknownName("law", name, NAMES)
    return overrides, chosen


def told(finding: Finding) -> str:
    """A line; of what is broken the rest stands below it."""
    law = finding.law
    head, *rest = finding.said.splitlines() or [""]
    below = "".join(f"\n{'':32}{line}" for line in rest[:12])
    return f"law {law.number:<4}{law.name:<11}{finding.verdict:<15}{finding.seconds:5.1f} s  {head}{below}"


def summary(name: str, found: Sequence[Finding]) -> str:
    counts = Counter(finding.verdict for finding in found)
    seconds = sum(finding.seconds for finding in found)
    names = [finding.law.name for finding in found if finding.verdict is Verdict.BROKEN]
    broken = f", {len(names)} broken ({', '.join(names)})" if names else ""
    asked = f"{counts[Verdict.KEPT]} laws kept{broken}, {counts[Verdict.NOT_ASKED]} do not apply"
    return f"{name}: {asked}, {seconds:.0f} s"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
