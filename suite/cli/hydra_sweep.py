"""Jobs of `suite sweep`: Hydra parses the sweep, and each job is a separate process.

A job that is killed by the out-of-memory killer or crashes in a library ends alone, under any of Hydra's launchers.
Its runs without a record get one with the reason. Jobs tell their ends in files, because a launcher may put them
anywhere."""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import hydra
import psutil
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from suite.config.compose import CONF, check_names, explained, given, key_of, parsed, register, searched
from suite.core.errors import InvalidRequest, SuiteError
from suite.core.exit_codes import Exit
from suite.core.files import check_access, check_folder, write_atomically
from suite.core.reasons import headline
from suite.core.record import Outcome
from suite.core.words import count
from suite.runner import provenance
from suite.runner.executors import in_process
from suite.runner.keys_read import below
from suite.runner.labels import COMMON, FLAG
from suite.runner.launch.signals import Interrupted, die_with_parent
from suite.runner.override_files import read_files
from suite.runner.runs import Run, expand
from suite.runner.store import Store

_STOPPED = "stopped"  # a file: no further job of this sweep is begun
_LOOK = 0.1  # seconds between two looks at a job
_GRACE = 20.0  # seconds that an interrupted job may take to end its ranks
_SWEEPS = ("-m", "--multirun")


def sweep(arguments: Sequence[str], dry: bool = False, labelled: Sequence[str] = ()) -> int:
    """Hydra reads the command line and calls back once per job; no job ends the others. Raises SuiteError where the
    command line is none.

    Args:
        dry: Says what would be made, or submitted, and makes nothing.
        labelled: Keys that the label of each job shows.
    """
    arguments = read_files(arguments)
    check_names([argument for argument in arguments if "=" in argument])
    reports = Path(str(given("reports", arguments, "reports"))).absolute()
    (check_access if dry else check_folder)(reports, "reports")
    folder = reports / "hydra" / f"jobs-{secrets.token_hex(6)}"
    many, sweeper = any(argument in _SWEEPS for argument in arguments), _Sweeper.here()

    def job(config: DictConfig) -> None:
        if many:
            _job(folder, config, dry, sweeper, (arguments, labelled))

    # Hydra takes all overrides from one place of a command line
    first = sorted(arguments, key=lambda argument: argument not in _SWEEPS)
    sys.argv[1:] = [*first, *searched(arguments)]
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else it prints a traceback and ends this process
    fault = ""
    try:
        try:
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)()
        except Interrupted:
            raise
        except SystemExit as error:  # of Hydra's parser of arguments, which has printed why
            if not error.code:
                return Exit.OK
            raise InvalidRequest("Hydra does not take these arguments", legal="suite run --hydra-help") from error
        except Exception as error:  # of a command line, or of a launcher whose worker has died
            if not folder.exists():
                raise explained(error, arguments) from error
            fault = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return _status(folder, fault, dry) if many else Exit.OK
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Sweeper:
    """The process that began a sweep. A worker of a launcher's may outlive it."""

    host: str
    pid: int
    since: float

    @classmethod
    def here(cls) -> _Sweeper:
        return cls(platform.node(), os.getpid(), psutil.Process().create_time())

    @property
    def gone(self) -> bool:
        """Whether it is known to have ended; of another host nothing is."""
        if self.host != platform.node():
            return False
        try:
            process = psutil.Process(self.pid)
            return bool(process.create_time() != self.since or process.status() == psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return True


class SweepJob(TypedDict):
    """A job's file.

    Attributes:
        status: None while it waits for a scheduler.
        plan: The fields of its Plan in a dry run.
    """

    overrides: list[str]
    status: int | None
    plan: Any


def _job(
    folder: Path, config: DictConfig, dry: bool, sweeper: _Sweeper, line: tuple[Sequence[str], Sequence[str]]
) -> None:
    """Hydra calls this for every job, in this process or in a worker of a launcher. line: the arguments of the
    sweep's command line, and the keys that every label shows.
    """
    overrides = list(HydraConfig.get().overrides.task)
    overrides += label_flags(overrides, *line)
    number = int(HydraConfig.get().job.num)
    if sweeper.gone:
        return
    plan: DryRun | None = None
    if (folder / _STOPPED).exists():
        status: int | None = Exit.STOPPED
    elif config.launch.get("submit"):  # all at once, when all are known
        status = None
    elif dry:
        plan = plan_of(overrides)
        print("\n".join(plan.lines), flush=True)
        status = plan.exit
    else:
        status = isolated(overrides, sweeper)
    if status == Exit.STOPPED:
        write_atomically(folder / _STOPPED, b"")
    job = {"overrides": overrides, "status": status, "plan": asdict(plan) if plan else {}}
    write_atomically(folder / f"{number:06}.json", json.dumps(job).encode())


@dataclass(frozen=True, slots=True)
class DryRun:
    """Result of a dry run. lines: one per run; the counts are counts of runs"""

    lines: tuple[str, ...]
    would_run: int = 0
    recorded: int = 0
    refused: int = 0

    @property
    def exit(self) -> Exit:
        """Exit status of the runs, as far as it is known before they start."""
        if not self.refused:
            return Exit.OK
        return Exit.SOME_FAILED if self.would_run or self.recorded else Exit.NOTHING


def planned(runs: Sequence[Run]) -> DryRun:
    """A line for each run: it has a record, is refused, or would run. Raises InvalidRequest where no record can be
    written."""
    lines, recorded, refused = [], 0, 0
    for reports in {str(run.outline.reports) for run in runs}:
        check_access(Path(reports), "reports")
    for run in runs:
        store, key = Store(Path(run.outline.reports)), provenance.key(run)
        standing = store.reusable(run.settings, key, run.outline.rerun)
        if standing:
            recorded, what = recorded + 1, f"has a record ({standing.outcome})"
        elif refusal := run.refusal or _unwritable(run):
            refused, what = refused + 1, f"refused: {headline(str(refusal))}"
        else:
            what = f"would run on {count(run.ranks, 'rank')}"
        lines.append(f"  {run.label:<18} {what}")
    return DryRun(tuple(lines), len(runs) - recorded - refused, recorded, refused)


def _unwritable(run: Run) -> InvalidRequest | None:
    """Why a run's checkpoints cannot be written, as far as it is known without writing."""
    if (folder := run.config.checkpoint.folder) is not None:
        try:
            check_access(Path(folder), "checkpoint.folder")
        except InvalidRequest as error:
            return error
    return None


def plan_of(overrides: Sequence[str]) -> DryRun:
    """The plan of one command line; a command line that does not compose counts as refused."""
    try:
        return planned(expand(overrides))
    except SuiteError as error:
        return DryRun((f"  refused: {error}",), refused=1)


def counted(plans: Sequence[DryRun]) -> str:
    """The last line of a dry run."""
    would_run, recorded, refused = (
        sum(getattr(plan, name) for plan in plans) for name in ("would_run", "recorded", "refused")
    )
    summary = f"{would_run} would run, {recorded} {'has' if recorded == 1 else 'have'} a record, {refused} refused"
    return f"dry run of {count(would_run + recorded + refused, 'run')}: {summary}; nothing was run"


def label_flags(overrides: Sequence[str], arguments: Sequence[str], labelled: Sequence[str] = ()) -> list[str]:
    """A flag for each key of `labelled`, and for each that a sweep varies and labels would not hold.

    Args:
        overrides: Of one of its jobs.
        arguments: Its command line.
    """
    typed = {key_of(argument): argument for argument in arguments if "=" in argument and not argument.startswith("-")}
    keys = [key for key in map(key_of, overrides) if below(key, COMMON)]
    varied = [key for key in keys if key not in typed or parsed(typed[key]).is_sweep_override()]
    return [f"{FLAG}{key}" for key in dict.fromkeys((*labelled, *varied))]


def _status(folder: Path, fault: str, dry: bool) -> int:
    """The exit status of a sweep whose jobs have told their ends in `folder`; those that wait for a scheduler go there
    now."""
    jobs: list[SweepJob] = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    codes = [int(job["status"]) for job in jobs if job["status"] is not None]
    if waiting := [job["overrides"] for job in jobs if job["status"] is None]:
        codes += scheduled(waiting, dry)
    if fault:
        print(f"the launcher broke off: {fault}\nrun the same command again to continue", file=sys.stderr)
        codes.append(Exit.SOME_FAILED)
    if dry:
        plans = [DryRun(**job["plan"]) for job in jobs if job["plan"]]
        if plans:
            print(counted(plans), flush=True)
        return together(codes)
    counts = Counter(Exit(code).name.lower().replace("_", " ") for code in codes)
    ends = ", ".join(f"{number} {what}" for what, number in counts.items())
    print(f"{count(codes, 'job')}: {ends}", file=sys.stderr)
    return together(codes)


def together(codes: Sequence[int]) -> int:
    """The exit status of several commands."""
    kinds = set(codes)
    if not kinds:
        return Exit.NOTHING
    if len(kinds) == 1:
        return codes[0]
    return Exit.STOPPED if Exit.STOPPED in kinds else Exit.SOME_FAILED


def isolated(overrides: Sequence[str], sweeper: _Sweeper) -> int:
    """Makes the runs of one command line in a process of its own; its exit status. If the process dies, its runs
    without a record get one. It ends with its sweep.
    """
    command = [sys.executable, "-m", "suite", "run", *overrides]
    process = subprocess.Popen(command, preexec_fn=partial(die_with_parent, signal.SIGTERM))  # noqa: PLW1509
    try:
        while (status := process.poll()) is None:
            if sweeper.gone:
                process.terminate()
                process.wait(_GRACE)
                os._exit(Exit.SOME_FAILED)  # an orphaned worker
            time.sleep(_LOOK)
    except BaseException:
        process.terminate()  # it ends its ranks first; a terminal may have interrupted it already
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    if status in tuple(Exit) and status != Exit.FAULT:  # whatever a command says itself
        return status
    try:
        leave_records(overrides, *ended(status))
    except Exception as error:  # what it cannot even compose leaves none
        print(f"no record: {type(error).__name__}: {error}", file=sys.stderr)
    return Exit.SOME_FAILED


def ended(status: int) -> tuple[Outcome, str]:
    """The outcome and the reason of a job's process that ended with `status` and said nothing."""
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return Outcome.FAILED, f"the process of this job ended with status {status}"
    interrupted = number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    hint = " (the kernel's out-of-memory killer sends it)" if number == signal.SIGKILL else ""
    return Outcome.CANCELLED if interrupted else Outcome.LOST_RANK, f"the process of this job was ended by {name}{hint}"


def leave_records(overrides: Sequence[str], outcome: Outcome, reason: str) -> None:
    """Write a record with the reason for every run of a command line that has none."""
    for run in expand(overrides):
        store, key = Store(Path(run.outline.reports)), provenance.key(run)
        if store.find(key) is None and store.reusable(run.settings, key, run.outline.rerun) is None:
            store.write(in_process.unfinished_record(run, key, outcome, reason))


def scheduled(commands: Sequence[Sequence[str]], dry: bool = False) -> list[int]:
    """Gives the command lines to the scheduler that their config names, and waits for them; their exit statuses."""
    from suite.runner.slurm.submit import submit_sweep

    if commands:
        (check_access if dry else check_folder)(Path(str(given("reports", commands[0], "reports"))), "reports")
    return [job.status for job in submit_sweep(commands, dry_run=dry, report=lambda text: print(text, flush=True))]
