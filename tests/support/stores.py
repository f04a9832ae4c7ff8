"""Large reports folders: thousands of records of every experiment, machine and outcome.

They are varied from the committed ones, so that sizes, names and shapes are those of real runs: several machines, seeds
and nights, losses by the hundred, tracebacks of a hundred lines, traces for some, files that are damaged.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from suite.core.record import LINES, Outcome

MEASURED = Path(__file__).parents[2] / "reports" / "measured"
MACHINES = ("", "cluster-a100", "epyc-2-cores", "laptop")  # the first is this one
BAD = tuple(outcome for outcome in Outcome if outcome is not Outcome.OK)
_LOSSES = 400  # batches of a run, at most
_TRACED = 0.08  # of the runs
_ENDED = 0.9  # of the runs ended well
_FIRST = datetime(2026, 9, 20, 1, tzinfo=UTC)

Raw = dict[str, Any]


@cache
def _templates() -> dict[str, list[Raw]]:
    """The committed records by experiment."""
    by_experiment: dict[str, list[Raw]] = {}
    for path in sorted(MEASURED.glob(f"*/*{LINES}")):
        for raw in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            by_experiment.setdefault(raw["experiment"], []).append(raw)
    return by_experiment


@cache
def _traces() -> list[Raw]:
    return [json.loads(gzip.decompress(path.read_bytes())) for path in sorted(MEASURED.glob("*/traces/*.json.gz"))]


def fill(
    folder: Path,
    count: int,
    *,
    seed: int = 0,
    nights: int = 2,
    machines: Sequence[str] = MACHINES,
    names: Collection[str] = (),
) -> None:
    """Write `count` records below `folder`, and one in two hundred more that no reader can use.

    Args:
        folder: Reports folder.
        count: Number of records.
        seed: Seed of the variation.
        nights: How often a run was made, each time by other code.
        machines: Names of the machines; empty for this one.
        names: Names of the experiments; empty for all.
    """
    rng = random.Random(seed)
    groups = [group for name, group in _templates().items() if not names or name in names]
    cells = [(machine, group) for machine in machines for group in groups]
    for number in range(count):
        machine, group = cells[number % len(cells)]
        turn = number // len(cells)
        raw = _varied(copy.deepcopy(group[turn // nights % len(group)]), turn // nights // len(group), rng)
        raw["provenance"] |= {
            "started": (_FIRST + timedelta(days=turn + rng.random())).isoformat(timespec="seconds"),
            "commit": {"dirty": False, "hash": f"{turn:040x}"},
            "turns": f"{machine}-{turn}",
        }
        base = folder / "measured" / machine if machine else folder
        if raw["outcome"] == Outcome.OK and rng.random() < _TRACED:
            raw["trace"] = f"traces/{raw['key']}.json.gz"
            (base / "traces").mkdir(parents=True, exist_ok=True)
            (base / raw["trace"]).write_bytes(gzip.compress(json.dumps(rng.choice(_traces())).encode(), 1, mtime=0))
        place = base / f"{raw['experiment']}{LINES}" if machine else base / "records" / f"{raw['key']}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        cut = '{"schema_version": 1, "key":\n' if number % 200 == 0 else ""
        with place.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(raw, sort_keys=True)}\n{cut if machine else ''}")
        if cut and not machine:
            place.with_name(f"cut-{number}.json").write_text(cut, encoding="utf-8")


def _varied(raw: Raw, again: int, rng: random.Random) -> Raw:
    """Another run of the same kind: other times and losses, another seed from the second on, one in ten failed."""
    raw["key"], raw["trace"] = f"{rng.getrandbits(80):020x}", None
    if again:
        raw["label"] += f" seed {100 + again}"
        raw["config"]["seed"] = 100 + again
    slower, ended = rng.lognormvariate(0, 0.08), rng.random() < _ENDED
    for metric in raw["metrics"].values():
        if metric["unit"] == "s":
            metric["values"] = [value and value * slower * rng.lognormvariate(0, 0.02) for value in metric["values"]]
    for name, values in raw["series"].items():
        if "|" not in name:
            kept = values[: _LOSSES if ended else int(_LOSSES * rng.random())]
            raw["series"][name] = [value and value * rng.lognormvariate(0, 0.01) for value in kept]
    if not ended:
        outcome = rng.choice(BAD)
        frames = [f'  File "suite/engine/worker.py", line {n}, in step_{n}' for n in range(rng.randrange(5, 120))]
        raw["outcome"] = outcome.value
        raw["reason"] = "\n".join(("Traceback (most recent call last):", *frames, "RuntimeError: rank 1: bad shape"))
    return raw
