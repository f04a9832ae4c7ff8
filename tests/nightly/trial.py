"""Trial of nightly runs: planted slowdowns are detected, and unchanged code is no regression.

    python tests/nightly/trial.py planted FOLDER ops:0.10 ops:0.05 update:0.10 messages:0.10
    python tests/nightly/trial.py unchanged FOLDER --runs 20

The trial works in a clone of the committed code in FOLDER, with real ranks and `suite nightly`; every nightly run
has its own commit. A planted slowdown is a busy wait for a share of an op's time: after every op, after updates only,
or before each message. The exit status is 1 if a nightly run of unchanged code is a regression.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path("suite/engine/worker.py")
COMMAND = (
    "system=axonn grid.inter={ranks} model=gpt_overhead batch.microbatch=1"
    " measure.rounds=2 measure.batches=6 measure.eval_batches=0"
)
_WAIT = """{pad}until = perf_counter() + {share} * (perf_counter() - start)
{pad}while perf_counter() < until:
{pad}    pass
"""


def git(folder: Path, *arguments: str) -> str:
    name = ("-c", "user.name=trial", "-c", "user.email=trial@localhost")
    return subprocess.run(
        ["git", "-C", str(folder), *name, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def plant(text: str, place: str, share: float) -> str:
    """Source of the worker with the slowdown."""
    wait = _WAIT.format(pad=" " * 8, share=share)
    inner = _WAIT.format(pad=" " * 12, share=share)
    after = next(line for line in text.splitlines(keepends=True) if "yield from execute(op, value)" in line)
    send = next(line for line in text.splitlines(keepends=True) if line.strip().startswith("transport.send("))
    if place == "ops":
        return text.replace(after, after + wait, 1)
    if place == "update":
        return text.replace(after, f"{after}        if op.kind is Kind.UPDATE:\n{inner}", 1)
    if place == "messages":
        return text.replace(send, f"        if feeds(op, stages):\n{inner}{send}", 1)
    raise SystemExit(f"{place}: ops, update or messages")


def run_nightly(folder: Path, arguments: list[str]) -> dict[str, object]:
    begin = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-m", "suite", "nightly", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (folder / "reports" / "nightly" / "history.jsonl").read_text().splitlines()
    line: dict[str, object] = json.loads(lines[-1])
    print(f"{line['night']} {line['status']:<11} rc {process.returncode} {time.monotonic() - begin:.0f} s", flush=True)
    for text in (*line["regressions"], *line["notes"]):  # type: ignore[misc]
        print(f"    {text}", flush=True)
    if process.returncode not in (0, 1, 4, 5):
        print(process.stdout[-2000:], process.stderr[-2000:])
    return line


def clone(folder: Path) -> Path:
    tree = folder / "tree"
    if not tree.exists():
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tree)], check=True)
    return tree


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("trial", choices=("planted", "unchanged"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("places", nargs="*", default=["ops:0.10"])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="setting of the nightly runs")
    options = parser.parse_args()
    tree = clone(options.folder)
    settings = ["once=[]", f"repeated=['{COMMAND.format(ranks=options.ranks)}']", *options.set]
    source = (tree / WORKER).read_text()
    if options.trial == "unchanged":
        lines = []
        for number in range(options.runs):
            (tree / WORKER).write_text(f"{source}# run {number}\n")
            git(tree, "commit", "--quiet", "-am", f"run {number}")
            lines.append(run_nightly(tree, settings))
        regressions = [line for line in lines if line["status"] == "regression"]
        noted = [line for line in lines if line["notes"]]
        print(f"{len(lines)} nightly runs of unchanged code: {len(regressions)} regressions, {len(noted)} with notes")
        return 1 if regressions else 0
    run_nightly(tree, settings)
    for place in options.places:
        name, _, share = place.partition(":")
        (tree / WORKER).write_text(plant(source, name, float(share)))
        git(tree, "commit", "--quiet", "-am", place)
        print(
            f"{place}:",
            "detected" if run_nightly(tree, settings)["status"] == "regression" else "not detected",
            flush=True,
        )
        (tree / WORKER).write_text(source)
        git(tree, "commit", "--quiet", "-am", "as before")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
