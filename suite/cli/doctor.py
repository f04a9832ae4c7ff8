"""Command `suite doctor`: check the components of this machine, then measure it.

Exit status 0 means that `make reproduce` can run on this machine.
"""

from __future__ import annotations

from suite.cli import Arguments, command
from suite.core.exit_codes import Exit


@command(
    "Check the components of this machine, and measure it for machine=local.",
    "",
    keys={"reports": "FOLDER   write the measurement to FOLDER/machine.json (default: reports)"},
)
def main(arguments: Arguments) -> int:
    from suite.doctor.check import ComponentCheck
    from suite.doctor.checks import checks
    from suite.doctor.measure import measure

    folder, failed = arguments.reports, []
    measurement = ComponentCheck("local machine", lambda: measure(folder))  # last: the checks would disturb it
    for check in (*checks(folder), measurement):
        works, line = check.report()
        print(line, flush=True)
        failed += [check.name] if check.needed and not works else []
    print(f"\nmake reproduce needs {', '.join(failed)}" if failed else "\nall that make reproduce needs works")
    return Exit.SOME_FAILED if failed else Exit.OK
