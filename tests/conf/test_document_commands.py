"""Commands printed in README.md and docs/: each runs as printed, or is checked up to the start of ranks.

Commands without ranks run in this process; an ordinary run draws a few. Short commands with ranks run as printed behind
the `exhaustive` mark. Training commands are also composed and checked by the parent, so that a renamed key fails here.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from suite.cli.main import main
from suite.core.record import Outcome, Record
from suite.runner.runs import expand
from tests.support.drawn import drawn
from tests.support.ranks import ROOT
from tests.support.tools import needs
from tests.support.waiting import patience

TEXT = "\n".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))])
ELSEWHERE = (  # patterns of commands that another test runs, or that want a data set, a cluster or a browser
    r"suite run .*data\.folder=FOLDER.*|suite run .*=FILE\.mtx .*",  # tests/unit/data
    r"suite (run|draw|conformance) .launch\.python_path=\[mine\].+",  # tests/distributed/test_document_examples.py
    r"suite (check|draw) FILE\.csv.*",  # tests/unit/cli/test_schedule_file.py
    r"suite run .*schedule=torch_csv.*|mpiexec .*|torchrun .*",  # tests/distributed
    r"suite (sweep|run) launch=mysite .*|cp conf/launch/site_template\.yaml .*",  # tests/slurm, tests/unit/runner
    r"suite (claims|league|report|compare|artifact) .*|suite league|python -m tests\.\w+ .*",  # tests/unit
)
TRAINING = r"suite (run|sweep) (?!.*executor=volumes|.*executor=simulated machine=summit efficiency=summit).*"
MINUTES = r".*(experiment=|pruning=early_bird|model=alexnet_narrow|model=vgg_16_narrow).*"  # not run as printed


def commands() -> list[str]:
    """The indented command lines of all documents, in order, without their comments."""
    lines = re.findall(r"^    ((?:suite|python|make|mpiexec|torchrun|cp) .*)$", TEXT, flags=re.M)
    return list(dict.fromkeys(shlex.join(shlex.split(line, comments=True)) for line in lines))


HERE = [command for command in commands() if not any(re.fullmatch(pattern, command) for pattern in ELSEWHERE)]
RANKS = [command for command in HERE if re.fullmatch(TRAINING, command)]
SECONDS = [command for command in HERE if command not in RANKS and not command.startswith("make ")]


def test_each_pattern_is_of_a_command() -> None:
    patterns = (*ELSEWHERE, TRAINING, MINUTES)
    assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, each) for each in commands())] == []
    assert len(SECONDS) >= 10


def check_records(command: str, folder: Path) -> None:
    if not command.startswith(("suite draw", "suite plan")):  # which write no record
        records = [Record.read(file) for file in (folder / "reports" / "records").glob("*.json")]
        assert {record.outcome for record in records} == {Outcome.OK}


@pytest.mark.parametrize("command", drawn(SECONDS, n=4))
def test_command_without_ranks_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out
    check_records(command, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", [command for command in RANKS if not re.fullmatch(MINUTES, command)])
def test_command_with_ranks_runs_as_printed(command: str, tmp_path: Path) -> None:
    needs("mpiexec")
    words = [sys.executable, "-m", *shlex.split(command)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("OMPI_")}
    env |= {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"}
    done = subprocess.run(
        words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=patience(100)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_records(command, tmp_path)


def jobs(words: list[str]) -> Iterator[list[str]]:
    """The overrides of each job of `suite run` (one) or `suite sweep` (every combination)."""
    choices = []
    for override in OverridesParser.create().parse_overrides(words[2:]):
        values = list(override.sweep_string_iterator()) if override.is_sweep_override() else [override.input_line]
        key = str(override.key_or_group)
        choices.append([value if "=" in str(value) else f"{key}={value}" for value in values])
    return (list(job) for job in itertools.product(*choices))


@pytest.mark.parametrize("command", drawn(RANKS, n=5))
def test_parent_accepts_every_run_of_the_command(command: str) -> None:
    for job in jobs(shlex.split(command)):
        for run in expand(job):
            assert run.refusal is None, (job, run.refusal)


def test_make_targets_exist() -> None:
    targets = {command.split()[1] for command in commands() if command.startswith("make ")}
    assert len(targets) > 5
    done = subprocess.run(["make", "-n", *sorted(targets)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
