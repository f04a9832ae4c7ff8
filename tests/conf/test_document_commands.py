"""Commands printed in documents: each parses and composes, and runs as printed or is checked up to the start of ranks.

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
from importlib.util import find_spec
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from suite.cli import main as console
from suite.cli.main import main
from suite.config.compose import resolve
from suite.core.errors import SuiteError
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
    r"suite (claims|accuracy|report|compare|artifact|gpu --collect) .*|suite accuracy|python -m tests\.\w+ .*",
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


@pytest.mark.parametrize("command", drawn(SECONDS, n=2))
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


# -- every command of every document, parsed and composed ------------------------------------------------------------

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "reports/README.md")),
    *(path for name in ("docs/**/*.md", "conf/*/README.md", "suite/papers/*/README.md") for path in ROOT.glob(name)),
    *ROOT.glob("examples/*.py"),
]
# A word in capitals stands for what the reader has: a value of an override composes as it is printed, an override by
# itself and a file of overrides (@FILE) are left out. Own code (mine/) and an own site file are made by other tests
# (tests/distributed/test_document_examples.py, tests/slurm), so a command that names them is parsed only.
LEFT_OUT = re.compile(r"@|[A-Z]+=")
OWN = re.compile(r"launch\.python_path=\[mine\]|launch=mysite")
ADDED = {"check": ["executor=check"]}  # overrides that a command adds


def printed(path: Path) -> Iterator[str]:
    """The commands of a document: lines of blocks, and inline code."""
    text = path.read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"^```\w*\n(.*?)^```", text, flags=re.M | re.S))
    lines = [*re.findall(r"^ {4,}\S.*$", text, flags=re.M), *blocks.splitlines(), *re.findall(r"`([^`\n]+)`", text)]
    for line in lines:
        if match := re.match(r"(?:\$ )?((?:suite|make|python -m [\w.]+)(?: .*|$))", line.strip()):
            yield match[1]


def suite_commands(command: str) -> Iterator[list[str]]:
    """The words after `suite` of a command; those of the commands that make prints for a command of make.

    Another module than `suite` must be executable.
    """
    name, *words = shlex.split(command, comments=True)
    if name == "suite":
        yield words
    elif name == "python":
        module = words[1]
        spec = find_spec(module)
        assert spec, module
        assert not spec.submodule_search_locations or find_spec(f"{module}.__main__"), module
        if module == "suite":
            yield words[2:]
    else:
        dry = [name, "-n", "INSTALL=no", *words]
        done = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        yield from map(shlex.split, re.findall(r" -m suite (.*)$", done.stdout, flags=re.M))


def check_composes(words: list[str]) -> None:
    """Raises InvalidRequest unless the command line takes the words, and the overrides among them compose."""
    if not words or words[0] == "--help" or words[0].isupper():  # the overview, or any command
        return
    command = console.command(words[0])
    if len(words) == 1 or "--help" in words:  # the name of a subcommand
        return
    arguments = command.read(words[1:])
    if not command.config or OWN.search(" ".join(words)):
        return
    own_keys = set() if words[0] == "reproduce" else set(command.keys)  # reproduce takes the keys of runs alone
    overrides = [word for word in arguments.words if word.partition("=")[0] not in own_keys]
    for job in jobs(["suite", words[0], *(word for word in overrides if not LEFT_OUT.match(word))]):
        resolve([*ADDED.get(words[0], ()), *job])


def fault(command: str) -> str:
    """Why a command would be refused; empty if it parses and composes, up to the files that it reads."""
    try:
        for words in suite_commands(command):
            check_composes(words)
    except (SuiteError, AssertionError) as error:
        return "" if "No such file or directory" in str(error) else str(error) or "refused"
    return ""


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_of_a_document_parse_and_compose(path: Path) -> None:
    faults = {command: fault(command) for command in printed(path)}
    assert faults == dict.fromkeys(faults, "")


WRONG = (
    "run sede=1",
    "rnu",
    "report record=a",
    "run model=gpt",
    "sweep seed=1,2 model=gpt_tiny,gpt",
    "sweep seed=1,2 foo=1",
)


@pytest.mark.parametrize("command", ["make tset", "python -m suite.report", *(f"suite {words}" for words in WRONG)])
def test_wrong_command_is_noticed(command: str) -> None:
    assert fault(command)
