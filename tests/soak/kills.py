"""Sweeps that are killed: no record is lost or damaged, no process is left, and the resumed sweep makes exactly the
missing runs.

A chain is one command on one fresh folder, killed again and again at random moments until it has made everything.
The victim is a rank, its launcher, a job, the sweep's own process, or its process group; or the disk is full."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from suite.core.record import Outcome, Record
from tests.soak.endings import Ending
from tests.support.waiting import patience

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 10.0  # seconds, on an idle machine, after which no process of a killed sweep may be left
DEADLINE = 240.0  # seconds after which a command hangs, on cores that others share
SIZE = "4m"  # of the tmpfs that is filled
MARK = "SUITE_SOAK"  # an environment variable that every process of a sweep inherits
ONE = ("rank", "launcher", "job")  # what goes on without what was killed
KINDS = (*ONE, "parent", "group", "disk")
SHORT = (
    *("grid.inter=2", "measure.warm_up=0", "measure.rounds=1", "measure.discard_first=0", "measure.batches=1"),
    *("executor=emulated", "batch.size=4", "launch.deadline=100"),
)
SWEEP = ("-m", "suite", "sweep")
COMMANDS = {  # each with how often it is taken
    (*SWEEP, "system=axonn,gpipe,pipeline", *SHORT): 5,
    (*SWEEP, "system=axonn", "seed=0,1", *SHORT[:5], "measure.eval_batches=0", "model.shape.layers=2"): 1,
    ("-m", "suite", "run", "experiment=smoke_grid"): 1,
    ("-m", "suite", "reproduce", "scale=smoke", "scale.reproduce=[formulas,smoke,'single grid.inter=2']"): 1,
}


class Sweep:
    """One command on one folder, as often as it is started."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        self.folder, self.reports, self.endings = folder, folder / "reports", list[Ending]()
        self.command = [sys.executable, *arguments, f"reports={self.reports}"]
        self.mark = f"{folder.name}-{os.getpid()}"
        (folder / "scratch").mkdir(parents=True)
        self.seen: dict[str, tuple[int, bytes]] = {}
        self.log = folder / "log"

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "TMPDIR": str(self.folder / "scratch"), "PYTHONPATH": str(ROOT), MARK: self.mark}
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [*self.command, *more], env=env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def processes(self) -> dict[int, list[str]]:
        """Those that inherit the mark and are no zombies, with their command lines."""
        processes, mark = {}, f"{MARK}={self.mark}\0".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if state not in "ZX" and mark in (entry / "environ").read_bytes() + b"\0":
                        line = (entry / "cmdline").read_bytes().decode(errors="replace")
                        processes[int(entry.name)] = line.split("\0")[:-1]
        return processes

    def victims(self, kind: str, parent: int) -> list[int]:
        """The processes of that kind which are there now."""
        children = {pid: line for pid, line in self.processes().items() if pid != parent}
        if kind == "job":
            return [pid for pid, line in children.items() if line[1:3] == ["-m", "suite"]]
        launchers = {pid for pid, line in children.items() if Path(line[0]).name in ("mpiexec", "prterun", "torchrun")}
        if kind == "launcher":
            return sorted(launchers)
        return [pid for pid, line in children.items() if "suite.runner.ranks.rank" in line and pid not in launchers]

    def fault(self, fault_text: str) -> None:
        self.endings.append(Ending("fault of a sweep", self.command[1:], f"{fault_text}\n{self.said()[-1500:]}"))

    def gone(self) -> None:
        """Nothing is left, LIMIT seconds after the sweep's own end."""
        end = time.monotonic() + patience(LIMIT)
        while remaining := self.processes():
            if time.monotonic() > end:
                self.fault(f"left after {LIMIT} s: {[' '.join(line) for line in remaining.values()]}")
                for pid in remaining:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.05)

    def records(self) -> dict[str, Record]:
        """All that are there; a damaged one is a fault. So does a record that existed before and is gone or changed."""
        records = {}
        files = {path.name: path for path in (self.reports / "records").glob("*.json")}
        for name, (changed, content) in self.seen.items():
            if name not in files:
                self.fault(f"{name} is lost")
            elif (now := files[name].read_bytes()) != content:
                self.fault(f"{name} is changed: {_ending(content)}; now {_ending(now)}")
            elif files[name].stat().st_mtime_ns != changed:
                self.fault(f"{name} was written again")
        for name, path in files.items():
            content = path.read_bytes()
            try:
                records[name] = Record.from_json(content.decode())
            except Exception as error:
                self.fault(f"{name} is damaged: {error}")
                continue
            if "Traceback" in records[name].reason:
                self.fault(f"{name} ended with a traceback: {records[name].reason[-1500:]}")
            if records[name].outcome is Outcome.CANCELLED:
                self.seen.pop(name, None)  # the next command makes this run again and replaces its record
            else:
                self.seen[name] = (path.stat().st_mtime_ns, content)
        for path in (self.reports / "traces").glob("*.json.gz"):
            try:
                json.loads(gzip.decompress(path.read_bytes()))
            except Exception as error:
                self.fault(f"{path.name} is damaged: {error}")
        return records

    def expect_reruns(self, records: dict[str, Record]) -> None:
        """Let the next command replace every record that did not end ok."""
        self.seen = {name: seen for name, seen in self.seen.items() if records[name].outcome is Outcome.OK}

    def wait(self, process: subprocess.Popen[bytes], seconds: float = DEADLINE) -> int | None:
        """Its exit status; None, and a fault, where it hangs."""
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.fault(f"hangs: {[' '.join(line) for line in self.processes().values()]}")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None

    def struck(self, random: Random, process: subprocess.Popen[bytes], kinds: Sequence[str], within: float) -> str:
        """The kind of a kill at a random moment within so many seconds; empty where it ended before."""
        moment, kind = time.monotonic() + random.uniform(0.0, within), random.choice(kinds)
        while process.poll() is None and time.monotonic() < moment:
            time.sleep(0.01)
        if process.poll() is not None or not self.strike(kind, process, random, moment + 2 * within):
            return ""
        self.endings.append(Ending(f"kill: {kind}", self.command[1:]))
        return kind

    def strike(self, kind: str, process: subprocess.Popen[bytes], random: Random, until: float) -> bool:
        """One kill. Whether there was something to kill before `until`."""
        if kind == "disk":
            return self.fill(process)
        if kind in ("parent", "group"):
            (os.kill if kind == "parent" else os.killpg)(process.pid, signal.SIGKILL)
            process.wait()
            return True
        while process.poll() is None and time.monotonic() < until:
            if victims := self.victims(kind, process.pid):
                with suppress(ProcessLookupError):
                    os.kill(random.choice(victims), signal.SIGKILL)
                    return True
            time.sleep(0.02)
        return False

    def fill(self, process: subprocess.Popen[bytes]) -> bool:
        """No byte is left on the disk until the sweep has ended, which has to say so."""
        ballast = self.reports / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)
        status = self.wait(process)
        ballast.unlink()
        said = self.said()
        done = status == 0 or " jobs: " in said  # so a sweep ends, whatever has become of its jobs
        if done and "No space left" not in said:
            return False  # it had nothing more to write
        if status == 0 or "No space left" not in said or "Traceback" in said:
            self.fault(f"a full disk ended it with {status}, and not with one line that says so")
        return True


def _ending(content: bytes) -> str:
    """How the run of a record ended, as the record's bytes say it."""
    try:
        record = Record.from_json(content.decode())
    except Exception as error:
        return f"damaged ({error})"
    return f"{record.outcome.value} ({record.reason})" if record.reason else record.outcome.value


def finish(sweep: Sweep, plan: Plan) -> None:
    """The same command to its end; then, where ranks and jobs were killed, what did not go well again."""
    for more in ((), ("rerun=failed",)):
        records = sweep.records()
        if len(records) == len(plan.keys) and all(record.outcome is Outcome.OK for record in records.values()):
            break
        if more:
            sweep.expect_reruns(records)
        status = sweep.wait(sweep.start(*more))
        sweep.gone()
        if more and status != 0:
            sweep.fault(f"rerun=failed ended with {status}")
    names = {Path(name).stem for name in sweep.records()}
    if names != plan.keys:
        sweep.fault(f"missing {sorted(plan.keys - names)}, more than unkilled {sorted(names - plan.keys)}")


@dataclass(frozen=True)
class Plan:
    """Records of an undisturbed sweep, and its duration."""

    keys: frozenset[str]
    seconds: float


@cache
def unkilled(folder: Path, arguments: tuple[str, ...]) -> tuple[Plan, list[Ending]]:
    """The records of an undisturbed sweep, made once per process, and its faults."""
    sweep, begin = Sweep(folder, arguments), time.monotonic()
    status = sweep.wait(sweep.start())
    seconds = time.monotonic() - begin
    records = sweep.records()
    if status != 0 or any(record.outcome is not Outcome.OK for record in records.values()):
        ends = [(record.label, record.outcome.value, record.reason) for record in records.values()]
        sweep.fault(f"unkilled it ends with {status}: {ends}")
    return Plan(frozenset(Path(name).stem for name in records), seconds), sweep.endings


@contextmanager
def disk(reports: Path) -> Iterator[str]:
    """`reports` is a small file system of its own, where this may be made; else why it is none."""
    reports.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(reports)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    try:
        yield done.stderr.strip() if done.returncode else ""
    finally:
        if not done.returncode:
            subprocess.run(["umount", "--lazy", str(reports)], check=False)


def endings(random: Random, folder: Path, most: int) -> list[Ending]:
    """Kills one command at most so often, until it has made everything; then it is let to its end."""
    arguments = random.choices(list(COMMANDS), weights=list(COMMANDS.values()))[0]
    name = f"unkilled-{os.getpid()}-{list(COMMANDS).index(arguments)}"
    plan, faults = unkilled(folder.parent / name, arguments)
    sweep, kills = Sweep(folder / "chain", arguments), 0
    with disk(sweep.reports) as full:
        if full:
            sweep.endings.append(Ending(f"no disk was filled: a tmpfs cannot be mounted here ({full})", arguments))
        while kills < most:
            process, before = sweep.start(), kills
            while kills < most and (
                kind := sweep.struck(random, process, KINDS[: -1 if full else None], plan.seconds / 4)
            ):
                kills += 1
                if kind not in ONE:
                    break
            sweep.wait(process)
            sweep.gone()
            sweep.records()
            if kills == before:
                break
        finish(sweep, plan)
    return [*faults, *sweep.endings, *[Ending("record kept", arguments)] * len(sweep.seen)]
