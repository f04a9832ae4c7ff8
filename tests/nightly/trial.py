"""Trial of nightly runs: planted slowdowns must be found, unchanged code must not be blamed.

    python tests/nightly/trial.py planted FOLDER ops:0.10 ops:0.05 update:0.10 messages:0.10
    python tests/nightly/trial.py unchanged FOLDER --nights 20

Works in a clone of the committed code in FOLDER, by real ranks and `suite nightly`; every night has a commit
of its own. A planted slowdown is a busy wait of that share of an op's time: after every op, after updates alone, or
before each message. Prints a line per night and the counts; ends with 1 where a night of unchanged code was blamed.
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


def planted(text: str, place: str, share: float) -> str:
    """The worker's source with the slowdown in it."""
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


def night(folder: Path, arguments: list[str]) -> dict[str, object]:
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "suite", "nightly", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (folder / "reports" / "nightly" / "history.jsonl").read_text().splitlines()
    line: dict[str, object] = json.loads(lines[-1])
    print(f"{line['night']} {line['status']:<11} rc {done.returncode} {time.monotonic() - begin:.0f} s", flush=True)
    for text in (*line["regressions"], *line["notes"]):  # type: ignore[misc]
        print(f"    {text}", flush=True)
    if done.returncode not in (0, 1, 4, 5):
        print(done.stdout[-2000:], done.stderr[-2000:])
    return line


def cloned(folder: Path) -> Path:
    tree = folder / "tree"
    if not tree.exists():
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tree)], check=True)
    return tree


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("planted", "unchanged"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("places", nargs="*", default=["ops:0.10"])
    parser.add_argument("--nights", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the nights")
    options = parser.parse_args()
    tree = cloned(options.folder)
    told = ["once=[]", f"repeated=['{COMMAND.format(ranks=options.ranks)}']", *options.set]
    source = (tree / WORKER).read_text()
    if options.what == "unchanged":
        lines = []
        for number in range(options.nights):
            (tree / WORKER).write_text(f"{source}# night {number}\n")
            git(tree, "commit", "--quiet", "-am", f"night {number}")
            lines.append(night(tree, told))
        blamed = [line for line in lines if line["status"] == "regression"]
        suspected = [line for line in lines if line["notes"]]
        print(f"{len(lines)} nights of unchanged code: {len(blamed)} blamed, {len(suspected)} suspected and cleared")
        return 1 if blamed else 0
    night(tree, told)
    for place in options.places:
        name, _, share = place.partition(":")
        (tree / WORKER).write_text(planted(source, name, float(share)))
        git(tree, "commit", "--quiet", "-am", place)
        print(f"{place}:", "found" if night(tree, told)["status"] == "regression" else "not found", flush=True)
        (tree / WORKER).write_text(source)
        git(tree, "commit", "--quiet", "-am", "as before")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
