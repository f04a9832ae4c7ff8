"""Command `suite conformance`: check a system against every law that applies to it.

    suite conformance system=waves 'launch.python_path=[mine]'
    suite conformance system=waves 'launch.python_path=[mine]' schedule.wave=4 --laws order,gradients

Ends with 0 where every law that applies is kept, 1 where one is broken, 2 where there is no such system.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from suite.cli import Arguments, Command
from suite.core.errors import UnknownName
from suite.core.exit_codes import Exit
from suite.core.words import count

if TYPE_CHECKING:
    from suite.conformance.laws import LawResult


def conformance(arguments: Arguments) -> int:
    from suite.conformance.laws import LAWS, LawVerdict, examine
    from suite.conformance.system_under_test import Subject

    chosen = [name for names in arguments.options.laws for name in names.split(",")]
    for name in chosen:
        if name not in (law_names := tuple(law.name for law in LAWS)):
            raise UnknownName("law", name, law_names)
    subject = Subject(arguments.words)
    for line in subject.parts():
        print(line)
    law_results: list[LawResult] = []
    for finding in examine(subject, chosen):
        print(told(finding), flush=True)
        law_results.append(finding)
    print(summary(subject.name, law_results))
    return Exit.SOME_FAILED if any(one.verdict is LawVerdict.BROKEN for one in law_results) else Exit.OK


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--laws", action="append", default=[], metavar="NAME,NAME", help="only these laws (default: all that apply)"
    )


def told(finding: LawResult) -> str:
    """One line per law; details of a broken law follow below it."""
    law = finding.law
    head, *rest = finding.said.splitlines() or [""]
    below = "".join(f"\n{'':32}{line}" for line in rest[:12])
    return f"law {law.number:<4}{law.name:<11}{finding.verdict:<15}{finding.seconds:5.1f} s  {head}{below}"


def summary(name: str, found: Sequence[LawResult]) -> str:
    from suite.conformance.laws import LawVerdict

    counts = Counter(finding.verdict for finding in found)
    seconds = sum(finding.seconds for finding in found)
    names = [finding.law.name for finding in found if finding.verdict is LawVerdict.BROKEN]
    broken = f", {len(names)} broken ({', '.join(names)})" if names else ""
    idle = counts[LawVerdict.NOT_ASKED]
    law_counts = (
        f"{count(counts[LawVerdict.KEPT], 'law')} kept{broken}, {idle} {'does' if idle == 1 else 'do'} not apply"
    )
    return f"{name}: {law_counts}, {seconds:.0f} s"


COMMAND = Command(
    "conformance",
    "Check every law that applies to a system, and print which ones it keeps.",
    conformance,
    "system=waves 'launch.python_path=[mine]' --laws order,gradients",
    config=True,
    options=options,
)
main = COMMAND.main
