"""Mutation testing in a planted copy of the tree.

    python -m tests.mutants draw --count 340 --seed 1     # tests/mutants/mutants.csv: once, before tests are deleted
    python -m tests.mutants plant FOLDER                   # a copy with an environment of its own (make install)
    python -m tests.mutants reach FOLDER                   # the ordinary tests, once: which test reaches which mutant
    python -m tests.mutants kill FOLDER --out FILE         # each mutant: the tests that reach it, until one fails

`kill` writes a line per mutant: its number, `killed`, `lived`, `unreached` or `gone`, and the test. A mutant whose
tests do not end counts as killed by their deadline.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.plant import SWITCH, draw, plant, read_list, write_list

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutants.csv")
_SKIPPED = ("tests/architecture/", "tests/benchmarks/", "tests/slurm/")  # they read source text or time it
_ORDINARY = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]


def planted(folder: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in tracked.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    gone = plant(folder, read_list(LIST))
    (folder / "gone").write_text("".join(f"{number}\n" for number in gone))
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
    name = ["-c", "user.name=mutants", "-c", "user.email=mutants@localhost"]
    subprocess.run(["git", *name, "commit", "--quiet", "--message", "planted"], cwd=folder, check=True)
    subprocess.run(["make", "--quiet", "install"], cwd=folder, check=True)
    packages = next((folder / ".venv" / "lib").glob("python3*/site-packages"))
    shutil.copy(Path(__file__).with_name("switch.py"), packages / f"{SWITCH}.py")


def reach(folder: Path) -> int:
    env = os.environ | {"MUTANTS_REACHED": str(folder / "reached"), "MUTANT": "-1"}
    (folder / "reached").unlink(missing_ok=True)
    line = [str(folder / ".venv/bin/python"), "-m", "pytest", "-p", "tests.mutants.plugin", *_ORDINARY]
    line += ["--seconds", str(folder / "seconds"), "tests"]
    with (folder / "log").open("w") as log:
        return subprocess.run(line, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT, check=False).returncode


class Server:
    """One process of the copy that runs tests in forks (tests/mutants/server.py)."""

    def __init__(self, folder: Path) -> None:
        unset = ("MUTANTS_REACHED", "PYTHONDONTWRITEBYTECODE")
        env = {name: value for name, value in os.environ.items() if name not in unset}
        line = [folder / ".venv/bin/python", "-m", "tests.mutants.server"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(line, cwd=folder, env=env, **pipes)  # type: ignore[call-overload]

    def run(self, mutant: int, tests: list[str], limit: float) -> tuple[int, str]:
        self.process.stdin.write(json.dumps({"mutant": mutant, "tests": tests, "limit": limit}) + "\n")
        self.process.stdin.flush()
        status, name = json.loads(self.process.stdout.readline())
        return status, name


def killing(server: Server, number: int, tests: list[str], limit: float) -> str:
    """`killed TEST`, `killed deadline` or `lived`. A test that fails without the mutant too does not count."""
    while tests:
        status, name = server.run(number, tests, limit)
        if status in (0, 5):
            break
        # a module may fail to import, and a process may end or be late, without the name of a test
        suspects = [name] if name in tests else [test for test in tests if name and test.startswith(name)] or tests
        if server.run(-1, suspects, limit)[0] == 0:
            return f"killed\t{name or ('deadline' if status == -1 else 'the process ended')}"
        tests = [test for test in tests if test not in suspects]
    return "lived\t"


def kill(folder: Path, out: Path, most: float, workers: int, only: set[int]) -> None:
    """Write a line per mutant. The copy has the tests of the tree, whose seconds and reach `reach` has found."""
    seconds = {}
    for row in (folder / "seconds").read_text().splitlines():
        value, name = row.split("\t")
        # persistent ranks are no children that a test waits for, so their seconds are missing
        seconds[name] = float(value) + 5 * name.startswith(("tests/distributed/", "tests/laws/test_memory.py"))
    reaching: dict[int, set[str]] = defaultdict(set)
    for row in (folder / "reached").read_text().splitlines():
        number, _, name = row.partition("\t")
        if name in seconds and not name.startswith(_SKIPPED):
            reaching[int(number)].add(name)
    gone = {int(row) for row in (folder / "gone").read_text().split()}
    out.touch()
    done = {int(row.split("\t")[0]) for row in out.read_text().splitlines()}
    servers: SimpleQueue[Server] = SimpleQueue()
    for _ in range(workers):
        servers.put(Server(folder))

    def one(number: int) -> None:
        tests, total = [], 0.0
        for name in sorted(reaching[number], key=seconds.__getitem__):
            tests.append(name)
            total += seconds[name]
            if total > most or len(tests) > 400:
                break
        result = "gone\t" if number in gone else "unreached\t"
        if tests and number not in gone:
            server = servers.get()
            result = killing(server, number, tests, 60 + 6 * total)
            servers.put(server)
        with out.open("a") as stream:
            stream.write(f"{number}\t{result}\n")

    todo = [number for number in range(len(read_list(LIST))) if number not in done and (not only or number in only)]
    begin = time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, todo))
    rows = [row.split("\t") for row in out.read_text().splitlines()]
    outcomes = {outcome: sum(row[1] == outcome for row in rows) for outcome in ("killed", "lived", "unreached", "gone")}
    print(f"{outcomes} in {time.monotonic() - begin:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=["draw", "plant", "reach", "kill"])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--count", type=int, default=340)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--most", type=float, default=40, help="processor seconds of tests per mutant")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, nargs="*", default=[])
    options = parser.parse_args()
    if options.task == "draw":
        write_list(LIST, draw(ROOT, options.count, options.seed))
        return 0
    folder = options.folder.resolve()
    if options.task == "plant":
        planted(folder)
    elif options.task == "reach":
        return reach(folder)
    else:
        kill(folder, options.out, options.most, options.workers, set(options.only))
    return 0


if __name__ == "__main__":
    sys.exit(main())
