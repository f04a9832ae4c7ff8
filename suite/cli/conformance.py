"""Command `suite conformance`: check a system against every law that applies to it.

    suite conformance system=waves 'launch.python_path=[mine]'
    suite conformance system=waves 'launch.python_path=[mine]' schedule.wave=4 --laws order,gradients

Exit status: 0 if the system obeys every law that applies, 1 if it breaks one, 2 if the system does not exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from suite.cli import Arguments, argument, command
from suite.core.errors import UnknownName
from suite.core.exit_codes import Exit
from suite.core.words import format_count

if TYPE_CHECKING:
    from suite.conformance.laws import LawResult


@command(
    "Check every law that applies to a system, and print which ones it keeps.",
    "system=waves 'launch.python_path=[mine]' --laws order,gradients",
    argument(
        "--laws", action="append", default=[], metavar="NAME,NAME", help="only these laws (default: all that apply)"
    ),
    config=True,
)
def main(arguments: Arguments) -> int:
    from suite.conformance.laws import LAWS, LawVerdict, examine
    from suite.conformance.system_under_test import SystemUnderTest

    names = [name for names in arguments.laws for name in names.split(",")]
    for name in names:
        if name not in (law_names := tuple(law.name for law in LAWS)):
            raise UnknownName("law", name, law_names)
    system = SystemUnderTest(arguments.words)
    for line in system.description():
        print(line)
    results: list[LawResult] = []
    for result in examine(system, names):
        print(result_line(result), flush=True)
        results.append(result)
    print(summary(system.name, results))
    return Exit.SOME_FAILED if any(result.verdict is LawVerdict.BROKEN for result in results) else Exit.OK


def result_line(result: LawResult) -> str:
    """The line of one law, followed by details if the law is broken."""
    law = result.law
    head, *rest = result.reason.splitlines() or [""]
    below = "".join(f"\n{'':32}{line}" for line in rest[:12])
    return f"law {law.number:<4}{law.name:<11}{result.verdict:<15}{result.seconds:5.1f} s  {head}{below}"


def summary(name: str, results: Sequence[LawResult]) -> str:
    """Number of laws by verdict, and the total time."""
    from suite.conformance.laws import LawVerdict

    counts = Counter(result.verdict for result in results)
    seconds = sum(result.seconds for result in results)
    names = [result.law.name for result in results if result.verdict is LawVerdict.BROKEN]
    broken = f", {len(names)} broken ({', '.join(names)})" if names else ""
    idle = counts[LawVerdict.NOT_APPLICABLE]
    law_counts = (
        f"{format_count(counts[LawVerdict.KEPT], 'law')} kept{broken}, {idle} {'does' if idle == 1 else 'do'} not apply"
    )
    return f"{name}: {law_counts}, {seconds:.0f} s"
