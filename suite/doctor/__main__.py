"""Decides what `make doctor` does: all checks at once, one line each; 0 when all that a laptop needs works."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from suite.doctor.checks import CHECKS
from suite.doctor.finding import WORKS, Check


def main(checks: Iterable[Check] = CHECKS) -> int:
    bad = []
    with ThreadPoolExecutor(max_workers=32) as pool:
        for check, found in [(check, pool.submit(check.finding)) for check in checks]:
            finding = found.result()
            print(finding.line(), flush=True)
            bad += [check.name] if check.needed and finding.state != WORKS else []
    print(f"\nmake reproduce needs {', '.join(bad)}" if bad else "\nall that make reproduce needs works")
    return int(bool(bad))


if __name__ == "__main__":
    raise SystemExit(main())
