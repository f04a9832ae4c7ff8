"""Command `suite doctor`: check the components of this machine concurrently, then measure it.

Exit status 0 means that `make reproduce` can run on this machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from suite.cli import Arguments, command
from suite.core.exit_codes import Exit
from suite.doctor.finding import WORKS, ComponentCheck


@command(
    "Check the components of this machine, and measure it for machine=local.",
    "",
    keys={"reports": "FOLDER   write the measurement to FOLDER/machine.json (default: reports)"},
)
def main(arguments: Arguments) -> int:
    from suite.doctor.checks import checks
    from suite.doctor.measure import measure

    folder = arguments.reports
    return run_checks(checks(folder), ComponentCheck("local machine", lambda: measure(folder)))


def run_checks(checks: Iterable[ComponentCheck], measurement: ComponentCheck | None = None) -> int:
    """Print a line per check. `measurement` runs after the other checks, which would disturb it."""
    from suite.doctor import probe

    failed = []
    pool = ThreadPoolExecutor(max_workers=32)
    try:
        for check, pending in [(check, pool.submit(check.finding)) for check in checks]:
            finding = pending.result()
            print(finding.line(), flush=True)
            failed += [check.name] if check.needed and finding.state != WORKS else []
        if measurement is not None:
            print(measurement.finding().line(), flush=True)
    except BaseException:
        probe.end_all()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    print(f"\nmake reproduce needs {', '.join(failed)}" if failed else "\nall that make reproduce needs works")
    return Exit.SOME_FAILED if failed else Exit.OK
