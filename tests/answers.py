"""Compute values and verdicts of answers by functions and from printed numbers, and compare them with the kept ones.

    python -m tests.answers        # prints each answer that differs; the exit status is 1 if there is one
    python -m tests.answers write  # keeps the new ones, where a change is right

A measured answer keeps its verdict alone. tests/unit/papers/test_kept_answers.py compares a drawn answer of each kind
in each run.
"""

from __future__ import annotations

import csv
import sys

from suite.claims import load
from suite.claims.claim import Evidence
from suite.claims.verdicts_now import judge_with_records
from suite.core.resources import ROOT

KEPT = ROOT / "tests/unit/papers/answers.csv"


def rows() -> list[tuple[str, str, str, str]]:
    """Claim, evidence, verdict and values of each answer."""
    names = [claim.id for claim in load.claims() if any(row.computed for row in claim.answers)]
    return [
        (
            name,
            str(each.evidence and each.evidence.value),
            each.verdict.value,
            "" if each.evidence in (Evidence.MEASURED, None) else repr(each.ours),
        )
        for name, judged in sorted(judge_with_records(names).items())
        for each in (judged, *judged.others)
    ]


def main(write: bool) -> int:
    found = rows()
    if write:
        with KEPT.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(found)
        return 0
    with KEPT.open(newline="", encoding="utf-8") as file:
        kept = {tuple(row) for row in csv.reader(file)}
    different = [*(("-", *row) for row in sorted(kept - {*found})), *(("+", *row) for row in found if row not in kept)]
    for line in different:
        print(*line)
    return bool(different)


if __name__ == "__main__":
    sys.exit(main("write" in sys.argv[1:]))
