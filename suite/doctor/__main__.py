"""Decides what `make doctor` does: all checks at once, one line each, then it measures; 0 when a laptop can go on."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from suite.doctor.checks import CHECKS, REPORTS
from suite.doctor.finding import WORKS, Check
from suite.doctor.measure import measure

MEASURED = Check("local machine", lambda: measure(REPORTS))


def main(checks: Iterable[Check] = CHECKS, last: Check | None = MEASURED) -> int:
    """`last` is asked when the others are done: it measures, and would suffer beside them."""
    bad = []
    with ThreadPoolExecutor(max_workers=32) as pool:
        for check, found in [(check, pool.submit(check.finding)) for check in checks]:
            finding = found.result()
            print(finding.line(), flush=True)
            bad += [check.name] if check.needed and finding.state != WORKS else []
    if last is not None:
        print(last.finding().line(), flush=True)
    print(f"\nmake reproduce needs {', '.join(bad)}" if bad else "\nall that make reproduce needs works")
    return int(bool(bad))


if __name__ == "__main__":
    raise SystemExit(main())
