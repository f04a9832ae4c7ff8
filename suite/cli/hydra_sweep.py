"""Jobs of `suite sweep`: Hydra parses the sweep, and each job is a separate process.

A crash in a library, or the out-of-memory killer, therefore ends only one job, under every launcher of Hydra. Runs that
such a job leaves without a record get a record with the reason. Each job writes its exit status to a file, because a
launcher may run it in another process.
"""

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
from pathlib import Path
from typing import Any, TypedDict

import hydra
import psutil
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from suite.config.compose import CONF, check_names, explained, key_of, override_value, parsed, register, searched
from suite.core.errors import InvalidRequest, SuiteError
from suite.core.exit_codes import Exit
from suite.core.files import check_access, check_folder, write_atomically
from suite.core.reasons import headline
from suite.core.record import Outcome
from suite.core.words import format_count
from suite.runner import provenance
from suite.runner.executors import in_process
from suite.runner.interleave import with_checkpoint_folder
from suite.runner.keys_read import below
from suite.runner.labels import COMMON, FLAG
from suite.runner.launch.signals import Interrupted, die_with_parent, end_program
from suite.runner.override_files import read_files
from suite.runner.runs import Run, expand
from suite.runner.store import Store

_STOPPED = "stopped"  # file that, once it exists, keeps further jobs of the sweep from starting
_POLL_INTERVAL = 0.1  # seconds
_GRACE = 20.0  # seconds in which an interrupted job may end its ranks
_MULTIRUN = ("-m", "--multirun")


def sweep(arguments: Sequence[str], dry: bool = False, labelled: Sequence[str] = ()) -> int:
    """Run a sweep: Hydra parses the command line and calls back once per job.

    Args:
        arguments: Command line of the sweep.
        dry: List the runs or jobs, and start none.
        labelled: Keys that the label of each run shows.

    Returns:
        The exit status of all jobs together.

    Raises:
        SuiteError: The command line is illegal.
    """
    arguments = read_files(arguments)
    check_names([argument for argument in arguments if "=" in argument])
    reports = Path(str(override_value("reports", arguments, "reports"))).absolute()
    (check_access if dry else check_folder)(reports, "reports")
    folder = reports / "hydra" / f"jobs-{secrets.token_hex(6)}"
    many, sweeper = any(argument in _MULTIRUN for argument in arguments), _Sweeper.here()

    def job(config: DictConfig) -> None:
        if many:
            _job(folder, config, dry, sweeper, (arguments, labelled))

    # Hydra takes all overrides from one place of a command line
    first = sorted(arguments, key=lambda argument: argument not in _MULTIRUN)
    sys.argv[1:] = [*first, *searched(arguments)]
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # without it, Hydra prints a traceback and ends this process
    fault = ""
    try:
        try:
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)()
        except Interrupted:
            raise
        except SystemExit as error:  # from Hydra's argument parser, which has printed the reason
            if not error.code:
                return Exit.OK
            raise InvalidRequest("Hydra does not take these arguments", legal="suite run --hydra-help") from error
        except Exception as error:  # an illegal command line, or a launcher whose worker has died
            if not folder.exists():
                raise explained(error, arguments) from error
            fault = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return _status(folder, fault, dry) if many else Exit.OK
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Sweeper:
    """The process that started a sweep. A worker of a launcher may outlive it."""

    host: str
    pid: int
    started: float

    @classmethod
    def here(cls) -> _Sweeper:
        return cls(platform.node(), os.getpid(), psutil.Process().create_time())

    @property
    def ended(self) -> bool:
        """Whether the process has ended. False on another host, where it cannot be seen."""
        if self.host != platform.node():
            return False
        try:
            process = psutil.Process(self.pid)
            return bool(process.create_time() != self.started or process.status() == psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return True


class SweepJob(TypedDict):
    """Content of a job's file.

    Attributes:
        overrides: Overrides of the job.
        status: Exit status; None for a job that a scheduler will run.
        plan: Fields of its DryRun in a dry run.
    """

    overrides: list[str]
    status: int | None
    plan: Any


def _job(
    folder: Path, config: DictConfig, dry: bool, sweeper: _Sweeper, line: tuple[Sequence[str], Sequence[str]]
) -> None:
    """Run one job and write its file. Hydra calls this in this process or in a worker of a launcher.

    Args:
        folder: Folder of the jobs' files.
        config: Configuration that Hydra composed.
        dry: List the runs, and start none.
        sweeper: Process of the sweep.
        line: Arguments of the sweep's command line, and the keys that every label shows.
    """
    overrides = list(HydraConfig.get().overrides.task)
    overrides += label_flags(overrides, *line)
    number = int(HydraConfig.get().job.num)
    if sweeper.ended:
        return
    plan: DryRun | None = None
    if (folder / _STOPPED).exists():
        status: int | None = Exit.STOPPED
    elif config.launch.get("submit"):  # submitted together after the last callback
        status = None
    elif dry:
        plan = plan_command(overrides)
        print("\n".join(plan.lines), flush=True)
        status = plan.exit
    else:
        status = run_isolated(overrides, sweeper)
    if status == Exit.STOPPED:
        write_atomically(folder / _STOPPED, b"")
    job = {"overrides": overrides, "status": status, "plan": asdict(plan) if plan else {}}
    write_atomically(folder / f"{number:06}.json", json.dumps(job).encode())


@dataclass(frozen=True, slots=True)
class DryRun:
    """Result of a dry run: a line per run, and the numbers of runs."""

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


def plan_runs(runs: Sequence[Run]) -> DryRun:
    """Dry run of these runs. Raises InvalidRequest if records cannot be written to the reports folder."""
    lines, recorded, refused = [], 0, 0
    for reports in {str(run.config.reports) for run in runs}:
        check_access(Path(reports), "reports")
    for run in runs:
        store, key = Store(Path(run.config.reports)), provenance.key(run)
        record = store.reusable(run.settings, key, run.config.rerun)
        if record:
            recorded, state = recorded + 1, f"has a record ({record.outcome})"
        elif refusal := with_checkpoint_folder(run, check_access).refusal:
            refused, state = refused + 1, f"refused: {headline(str(refusal))}"
        else:
            state = f"would run on {format_count(run.ranks, 'rank')}"
        lines.append(f"  {run.label:<18} {state}")
    return DryRun(tuple(lines), len(runs) - recorded - refused, recorded, refused)


def plan_command(overrides: Sequence[str]) -> DryRun:
    """Dry run of one command line. A command line that does not compose counts as refused."""
    try:
        return plan_runs(expand(overrides))
    except SuiteError as error:
        return DryRun((f"  refused: {error}",), refused=1)


def dry_run_summary(plans: Sequence[DryRun]) -> str:
    """The last line of a dry run: the numbers of runs."""
    would_run, recorded, refused = (
        sum(getattr(plan, name) for plan in plans) for name in ("would_run", "recorded", "refused")
    )
    summary = f"{would_run} would run, {recorded} {'has' if recorded == 1 else 'have'} a record, {refused} refused"
    return f"dry run of {format_count(would_run + recorded + refused, 'run')}: {summary}; nothing was run"


def label_flags(overrides: Sequence[str], arguments: Sequence[str], labelled: Sequence[str] = ()) -> list[str]:
    """Flags for keys that labels do not show by default: the keys in `labelled`, and the keys that the sweep varies.

    Args:
        overrides: Overrides of one job.
        arguments: Command line of the sweep.
        labelled: Keys that labels always show.
    """
    typed = {key_of(argument): argument for argument in arguments if "=" in argument and not argument.startswith("-")}
    keys = [key for key in map(key_of, overrides) if below(key, COMMON)]
    varied = [key for key in keys if key not in typed or parsed(typed[key]).is_sweep_override()]
    return [f"{FLAG}{key}" for key in dict.fromkeys((*labelled, *varied))]


def _status(folder: Path, fault: str, dry: bool) -> int:
    """The exit status of a sweep whose jobs wrote their files in `folder`. Submits the jobs for a scheduler first."""
    jobs: list[SweepJob] = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    codes = [int(job["status"]) for job in jobs if job["status"] is not None]
    if waiting := [job["overrides"] for job in jobs if job["status"] is None]:
        codes += submit(waiting, dry)
    if fault:
        print(f"the launcher failed: {fault}\nrun the same command again to continue", file=sys.stderr)
        codes.append(Exit.SOME_FAILED)
    if dry:
        plans = [DryRun(**job["plan"]) for job in jobs if job["plan"]]
        if plans:
            print(dry_run_summary(plans), flush=True)
        return combined_status(codes)
    counts = Counter(Exit(code).name.lower().replace("_", " ") for code in codes)
    states = ", ".join(f"{number} {name}" for name, number in counts.items())
    print(f"{format_count(codes, 'job')}: {states}", file=sys.stderr)
    return combined_status(codes)


def combined_status(codes: Sequence[int]) -> int:
    """The exit status for several commands together."""
    kinds = set(codes)
    if not kinds:
        return Exit.NOTHING
    if len(kinds) == 1:
        return codes[0]
    return Exit.STOPPED if Exit.STOPPED in kinds else Exit.SOME_FAILED


def run_isolated(overrides: Sequence[str], sweeper: _Sweeper) -> int:
    """Execute one command line in a process of its own, which ends with its sweep. Returns the exit status.

    If the process dies, its runs without a record get one.
    """
    command = [sys.executable, "-m", "suite", "run", *overrides]
    process = subprocess.Popen(command, preexec_fn=die_with_parent)  # noqa: PLW1509
    try:
        while (status := process.poll()) is None:
            if sweeper.ended:
                end_program(process, _GRACE)
                os._exit(Exit.SOME_FAILED)  # an orphaned worker
            time.sleep(_POLL_INTERVAL)
    except BaseException:
        end_program(process, _GRACE)  # the process ends its ranks; a terminal may have interrupted it already
        raise
    if status in tuple(Exit) and status != Exit.FAULT:  # the command itself chose the status
        return status
    try:
        write_missing_records(overrides, *ending_reason(status))
    except Exception as error:  # the command line does not compose
        print(f"no record: {type(error).__name__}: {error}", file=sys.stderr)
    return Exit.SOME_FAILED


def ending_reason(status: int) -> tuple[Outcome, str]:
    """Outcome and reason for the runs of a process that ended with `status` before it wrote its records."""
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return Outcome.FAILED, f"the process of this job ended with status {status}"
    interrupted = number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    hint = " (the kernel's out-of-memory killer sends it)" if number == signal.SIGKILL else ""
    return Outcome.CANCELLED if interrupted else Outcome.LOST_RANK, f"the process of this job was ended by {name}{hint}"


def write_missing_records(overrides: Sequence[str], outcome: Outcome, reason: str) -> None:
    """Write a record with this outcome for every run of a command line that has none."""
    for run in expand(overrides):
        store, key = Store(Path(run.config.reports)), provenance.key(run)
        if store.find(key) is None and store.reusable(run.settings, key, run.config.rerun) is None:
            store.write(in_process.unfinished_record(run, key, outcome, reason))


def submit(commands: Sequence[Sequence[str]], dry: bool = False) -> list[int]:
    """Submit command lines to the scheduler and wait for them. Returns their exit statuses."""
    from suite.runner.slurm.submit import submit_sweep

    if commands:
        (check_access if dry else check_folder)(Path(str(override_value("reports", commands[0], "reports"))), "reports")
    return [job.status for job in submit_sweep(commands, dry_run=dry, report=lambda text: print(text, flush=True))]
