"""Large reports folders: thousands of records of every experiment, machine and outcome.

They are varied from the committed ones, so that sizes, names and shapes are those of real runs: several machines, seeds
and nights, losses by the hundred, tracebacks of a hundred lines, traces for some, files that are damaged.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from suite.core.record import LINES, Outcome, Source

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "reports" / "measured"
MACHINES = ("", "cluster-a100", "epyc-2-cores", "laptop")  # the first is this one
BAD = tuple(outcome for outcome in Outcome if outcome is not Outcome.OK)
_LOSSES = 400  # batches of a run, at most
_TRACED = 0.08  # of the runs
_ENDED = 0.9  # of the runs ended well
_FIRST = datetime(2026, 9, 20, 1, tzinfo=UTC)

Raw = dict[str, Any]
_Cell = tuple[str, str, Raw | None, str]  # machine, experiment, what its file says of it, what it is varied from


@cache
def _templates() -> dict[str, list[Raw]]:
    """The committed records by experiment."""
    by_label: dict[str, list[Raw]] = {}
    for path in sorted(MEASURED.glob(f"*/*{LINES}")):
        for line in path.read_text(encoding="utf-8").splitlines():
            raw = json.loads(line)
            by_label.setdefault(raw["experiment"], []).append(raw)
    return by_label


@cache
def _traces() -> list[Raw]:
    return [json.loads(gzip.decompress(path.read_bytes())) for path in sorted(MEASURED.glob("*/traces/*.json.gz"))]


@cache
def _experiments() -> list[tuple[str, Raw | None, str]]:
    """Each experiment with what its file says of it and the one that its runs are varied from."""
    template_keys = sorted(_templates())
    records = []
    for path in sorted((ROOT / "conf" / "experiment").glob("*.yaml")):
        said = yaml.safe_load(path.read_text(encoding="utf-8")).get("experiment", {})
        said.pop("runs", None)
        near = [name for name in template_keys if name.split("_")[0] == path.stem.split("_")[0]] or template_keys
        like = path.stem if path.stem in template_keys else near[len(records) % len(near)]
        records.append((path.stem, None if like == path.stem else said, like))
    return records


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

    nights: how often a run was made, each time by other code; names: of the experiments, all unless told
    """
    rng = random.Random(seed)
    for machine in machines:
        base = folder / "measured" / machine if machine else folder
        (base / "traces").mkdir(parents=True, exist_ok=True)
        (folder / "records" if not machine else base).mkdir(parents=True, exist_ok=True)
    for number, (raw, machine) in enumerate(_runs(count, rng, nights, _cells(machines, names))):
        base = folder / "measured" / machine if machine else folder
        raw["key"] = f"{rng.getrandbits(80):020x}"
        raw["trace"] = None
        if rng.random() < _TRACED and raw["outcome"] == Outcome.OK:
            raw["trace"] = f"traces/{raw['key']}.json.gz"
            trace = json.dumps(_scaled(rng.choice(_traces()), 0.5 + rng.random()), separators=(",", ":"))
            (base / raw["trace"]).write_bytes(gzip.compress(trace.encode(), 1, mtime=0))
        cut = '{"schema_version": 1, "key":' if number % 200 == 0 else ""
        if machine:
            with (base / f"{raw['experiment']}{LINES}").open("a", encoding="utf-8") as lines:
                lines.write("".join(f"{line}\n" for line in (json.dumps(raw, sort_keys=True), cut) if line))
            continue
        place = folder / "records" / f"{raw['key']}.json"
        place.write_text(json.dumps(raw, indent=1, sort_keys=True), encoding="utf-8")
        if cut:
            place.with_name(f"cut-{number}.json").write_text(cut, encoding="utf-8")


def _cells(machines: Sequence[str], names: Collection[str]) -> list[_Cell]:
    return [(machine, *one) for machine in machines for one in _experiments() if not names or one[0] in names]


def _runs(count: int, rng: random.Random, nights: int, cells: Sequence[_Cell]) -> Iterator[tuple[Raw, str]]:
    """Round by round a run of each experiment on each machine, the committed labels first, then other seeds of them."""
    for number in range(count):
        machine, name, said, like = cells[number % len(cells)]
        template, turn = _templates()[like], number // len(cells)
        raw = copy.deepcopy(template[turn // nights % len(template)])
        again = turn // nights // len(template)
        raw["experiment"] = raw["config"]["experiment"]["name"] = name
        if said is not None:
            raw["config"]["experiment"] = {**said, "name": name}
        if again:
            raw["label"] += f" seed {100 + again}"
            raw["config"]["seed"] = 100 + again
        night = turn + rng.random()
        raw["provenance"] |= {
            "started": (_FIRST + timedelta(days=night)).isoformat(timespec="seconds"),
            "commit": {"dirty": False, "hash": f"{turn:040x}"},
            "turns": f"{machine}-{turn}",
        }
        yield _ended(_varied(raw, rng), rng), machine


def _varied(raw: Raw, rng: random.Random) -> Raw:
    slower = rng.lognormvariate(0, 0.08)
    for metric in raw["metrics"].values():
        if metric["unit"] == "s":
            metric["values"] = [value and value * slower * rng.lognormvariate(0, 0.02) for value in metric["values"]]
    for name, values in raw["series"].items():
        if "|" not in name:
            raw["series"][name] = [value and value * rng.lognormvariate(0, 0.01) for value in values[:_LOSSES]]
    if raw["source"] == Source.MEASURED and raw["experiment"].endswith("clusters"):
        raw["source"] = Source.SIMULATED.value
    return raw


def _ended(raw: Raw, rng: random.Random) -> Raw:
    if rng.random() < _ENDED:
        return raw
    outcome = rng.choice(BAD)
    raw["outcome"] = outcome.value
    raw["reason"] = f"{outcome.value} after {rng.randrange(600)} s; rule: a run ends well"
    if outcome is Outcome.FAILED:
        frames = (
            f'  File "suite/engine/worker.py", line {rng.randrange(400)}, in step_{n}\n    self.run(op, {n})'
            for n in range(rng.randrange(5, 120))
        )
        raw["reason"] = "\n".join(("Traceback (most recent call last):", *frames, "RuntimeError: rank 1: bad shape"))
    cut = rng.random()
    raw["series"] = {name: values[: int(len(values) * cut)] for name, values in raw["series"].items()}
    return raw


def _scaled(trace: Raw, times: float) -> Raw:
    """The spans' times multiplied; a row starts with rank, category, start and end."""
    return {**trace, "spans": [[row[0], row[1], row[2] * times, row[3] * times, *row[4:]] for row in trace["spans"]]}
