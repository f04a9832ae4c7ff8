"""Command `suite conformance`: check a system against every law that applies to it.

    suite conformance system=waves 'launch.python_path=[mine]'
    suite conformance system=waves 'launch.python_path=[mine]' schedule.wave=4 --laws order,gradients

Exit status: 0 if the system obeys every law that applies, 1 if it breaks one, 2 if the system does not exist.
"""

from __future__ import annotations

import time
from collections import Counter

from suite.cli import Arguments, argument, command
from suite.core.errors import UnknownName
from suite.core.exit_codes import Exit


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
    engine = "the suite's engine" if system.on_engine else "an engine of its own"  # imports its class
    print(f"{system.name}, on {engine}: {system.base.system.description or 'a system'}")
    begin, verdicts = time.monotonic(), Counter[LawVerdict]()
    for result in examine(system, names):
        law, indented = result.law, f"\n{'':32}".join(result.reason.splitlines()[:13])
        print(f"law {law.number:<4}{law.name:<11}{result.verdict:<15}{result.seconds:5.1f} s  {indented}", flush=True)
        verdicts[result.verdict] += 1
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    print(f"{system.name}: laws: {counts}; {time.monotonic() - begin:.0f} s")
    return Exit.SOME_FAILED if verdicts[LawVerdict.BROKEN] else Exit.OK
