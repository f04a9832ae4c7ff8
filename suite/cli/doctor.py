"""Command `make doctor`: all checks at once, one line each, then it measures; 0 when a laptop can go on."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from suite.cli import Arguments, Command
from suite.core.exit_codes import Exit
from suite.doctor.finding import WORKS, ComponentCheck


def doctor(arguments: Arguments) -> int:
    from suite.doctor.checks import checks
    from suite.doctor.measure import measure

    folder = arguments.reports
    return examined(checks(folder), ComponentCheck("local machine", lambda: measure(folder)))


def examined(checks: Iterable[ComponentCheck], last: ComponentCheck | None = None) -> int:
    """Prints a line per check. `last` runs after the other checks: it measures, and they would disturb it."""
    from suite.doctor import probe

    bad = []
    pool = ThreadPoolExecutor(max_workers=32)
    try:
        for check, pending in [(check, pool.submit(check.finding)) for check in checks]:
            finding = pending.result()
            print(finding.line(), flush=True)
            bad += [check.name] if check.needed and finding.state != WORKS else []
        if last is not None:
            print(last.finding().line(), flush=True)
    except BaseException:
        probe.end_all()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    print(f"\nmake reproduce needs {', '.join(bad)}" if bad else "\nall that make reproduce needs works")
    return Exit.SOME_FAILED if bad else Exit.OK


COMMAND = Command(
    "doctor",
    "Check what works on this machine, one line per component, and measure it for machine=local.",
    doctor,
    "",
    keys={"reports": "FOLDER   folder whose machine.json is written (default: reports)"},
)
main = COMMAND.main
