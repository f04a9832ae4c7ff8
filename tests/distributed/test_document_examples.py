"""The examples of the documents run as printed: training on one rank and on two, and a user's own system."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from baselines.pytorch import PyTorch
from suite.core.record import Outcome, Record
from suite.runner.launch.launch_command import rank_environment
from tests.support.curves import losses_of
from tests.support.drawn import cells, few
from tests.support.ranks import ROOT
from tests.support.scripts import load_script
from tests.support.short import short
from tests.support.tools import needs

EXTENDING = (ROOT / "docs/extending.md").read_text()
SAMO = (ROOT / "docs/papers/samo.md").read_text()
GETTING_STARTED = (ROOT / "docs/getting_started.md").read_text()


def section(title: str) -> str:
    (text,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", EXTENDING, flags=re.S | re.M)
    return str(text)


def example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", section("Train your own layers"), flags=re.S)
    return str(code)


(TODAY,) = few(["mpiexec", "torchrun"], 2)[:1]  # the launcher of the ordinary run
LAUNCHES = re.findall(r"^    ((?:mpiexec|torchrun) .*?)(?: +#.*)?$", section("Train your own layers"), flags=re.M)


def printed_by(code: str, folder: Path) -> list[str]:
    """Words that a program prints which runs in this process."""
    program = folder / "alone.py"
    program.write_text(code)
    with redirect_stdout(StringIO()) as said:
        load_script(program)
    return said.getvalue().split()


@pytest.mark.slow("a launcher and its ranks import torch")
@pytest.mark.parametrize(("launcher", "times"), cells(["mpiexec", "torchrun"], [1, 4], n=0, always=[(TODAY, 1)]))
def test_readme_example_losses_match_on_two_ranks(launcher: str, times: int, tmp_path: Path) -> None:
    """Run each command as printed, with the example as printed; each exits with status 0."""
    one_process = sorted(map(float, printed_by(example().replace("Grid(inter=2)", "Grid()"), tmp_path)))
    assert len(one_process) == 3
    (command,) = [line for line in LAUNCHES if line.startswith(launcher)]
    needs("mpiexec")
    (tmp_path / "train.py").write_text(example())
    env = rank_environment(1, [str(ROOT)])
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    for _ in range(times):
        line = shlex.split(command)
        done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        # ranks under torchrun write a line and its end separately, so two losses may share a line
        losses = sorted(map(float, re.findall(r"\d\.\d+?(?=\d\.|\s|$)", done.stdout)))
        assert losses[0::2] == losses[1::2], "both ranks report the same losses"
        assert losses[0::2] == pytest.approx(one_process, rel=1e-5)


def test_documented_pruning_example_runs(tmp_path: Path) -> None:
    """The section's lines follow the lines that make the layers."""
    (pruned,) = re.findall(r"```python\n(.*?)```", SAMO, flags=re.S)
    setup = example().partition("engine = ")[0]
    more = "print(*engine.train(batches))\nprint(engine.state.model_states.layout.bytes())\n"
    printed = printed_by(f"{setup}{pruned}\n{more}", tmp_path)
    assert len(printed) == 4
    whole, pruned_weights = 64 + 64 + 4, (8 * 64, 64 * 64, 64 * 4)
    kept_entries = sum(round(0.2 * entries) for entries in pruned_weights)
    assert int(printed[-1]) == 24 * kept_entries + 2 * sum(pruned_weights) + 20 * whole


def test_documented_drawing_matches_command_output() -> None:
    from suite.cli.draw import draw

    (command,) = re.findall(r"suite draw (.*)", GETTING_STARTED)
    printed = "\n".join("    " + line for line in draw(command.split()).splitlines())
    assert printed in GETTING_STARTED


# -- a user's own system --------------------------------------------------------------------------------------------

OWN = section("Add a system: one file and one YAML")
# each file is named in the sentence before it
NAMED = r"`(mine/[\w/.]+)`(?:(?!```).)*?```\w+\n(.*?)```"
FILES = dict(re.findall(NAMED, OWN, flags=re.S))
COMMANDS = re.findall(r"^    (suite .*)$", OWN, flags=re.M)
MORE = section("Add a model, a machine, an experiment")
MORE_FILES = dict(re.findall(NAMED, MORE, flags=re.S))
MORE_COMMANDS = re.findall(r"^    (suite .*)$", MORE, flags=re.M)
SHORT = short(batches=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (FILES | MORE_FILES).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run_command(command: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the document's command, word for word, in the folder with `mine`."""
    line = [sys.executable, "-m", *shlex.split(command), *more]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=False)


PRINTED_LAWS = re.findall(r"^    (law .*)$", OWN, flags=re.M)
FEW, RANKS = {"composes", "order", "versions", "gradients"}, {"replay", "clocks", "resume", "ranks"}


def without_seconds(line: str) -> str:
    """A printed line without its duration."""
    return re.sub(r" +\d+\.\d s", " s", line)


@pytest.mark.slow("four laws of a system, two on real ranks")
@pytest.mark.parametrize("laws", [FEW, pytest.param(FEW | RANKS, marks=pytest.mark.exhaustive)], ids=["few", "all"])
def test_documented_system_keeps_every_law(laws: set[str], folder: Path) -> None:
    needs("mpiexec")
    selection = ["--laws", ",".join(sorted(laws))] if laws == FEW else []
    process = run_command("suite conformance system=waves launch.python_path=[mine]", folder, *selection)
    assert process.returncode == 0, process.stdout + process.stderr
    lines = process.stdout.splitlines()
    assert lines[0] == "waves, on the suite's engine: GPipe in waves of a few microbatches"
    kept_laws = {line[8:18].strip() for line in lines if "  kept  " in line}
    assert kept_laws == laws
    rest = "" if laws == FEW else ", 4 does not apply"
    assert lines[-1].startswith(f"waves: laws: {len(laws)} kept{rest}; ")
    printed = {(text := without_seconds(line))[8:18].strip(): text for line in lines if line.startswith("law ")}
    documented = {(text := without_seconds(line))[8:18].strip(): text for line in PRINTED_LAWS}
    assert len(documented) == 3
    for law in documented.keys() & laws:  # "..." in the document stands for omitted words
        assert all(part in printed[law] for part in documented[law].split("...")), printed[law]
    assert not list(folder.glob("reports*")), "no reports are left"


@pytest.mark.slow("two simulations in new processes")
def test_documented_system_runs_in_simulator(folder: Path) -> None:
    """The command simulates the documented schedule, so longer waves take less time."""
    seconds = {}
    for wave in (1, 2):
        done = run_command(COMMANDS[2], folder, f"schedule.wave={wave}", f"reports=reports{wave}")
        assert done.returncode == 0, done.stdout + done.stderr
        (file,) = (folder / f"reports{wave}" / "records").glob("*.json")
        record = Record.read(file)
        assert (record.outcome, record.system, record.source.value) == (Outcome.OK, "waves", "simulated")
        (seconds[wave],) = record.metrics["batch_time"].values
    assert seconds[2] < 0.8 * seconds[1]


@pytest.mark.slow("a run on two ranks")
def test_documented_schedule_trains_like_pytorch(folder: Path) -> None:
    """Two real ranks; a batch of 10 microbatches in waves of 4 has a short last wave."""
    batch = ["batch.size=20", *SHORT]
    done = run_command(COMMANDS[1], folder, *batch, "reports=reports")
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (folder / "reports" / "records").glob("*.json")
    mine = Record.read(file)
    assert (mine.outcome, mine.system, mine.label) == (Outcome.OK, "waves", "waves 2x1 schedule.wave=4 batch.size=20")
    assert mine.config["schedule"] == {"_target_": "waves.Waves", "wave": 4}
    count = len(mine.series["loss"])
    assert count >= 5
    assert mine.series["loss"] == pytest.approx(losses_of(PyTorch, ["system=pytorch", *batch], count), rel=1e-5)
    assert mine.series["loss"][-1] < mine.series["loss"][0]


@pytest.mark.slow("two commands in new processes")
def test_record_of_documented_schedule_depends_on_its_code(folder: Path) -> None:
    """A record is not reused after a change of the user's file."""
    for prefix in ("", "# changed\n"):
        (folder / "mine/waves.py").write_text(prefix + FILES["mine/waves.py"])
        done = run_command(COMMANDS[1], folder, "batch.size=7", "reports=reports")  # rejected before any rank starts
        assert done.returncode == 2, done.stdout + done.stderr
    assert len(list((folder / "reports" / "records").glob("*.json"))) == 2


def test_documented_schedule_is_drawn(folder: Path) -> None:
    done = run_command(COMMANDS[0], folder, "batch.size=8")
    assert done.stdout.splitlines()[0] == (
        "stage 0 | F0 F1 .  .  .  .  .  .  B0 == B1 == F2 F3 .  .  .  .  .  .  B2 == B3 =="
    ), done.stderr
    assert done.stdout.splitlines()[-1] == "activations alive per stage at most 2, 2, 2"


@pytest.mark.slow("a command in a new process")
def test_illegal_schedule_is_rejected_before_launch(folder: Path) -> None:
    broken = FILES["mine/waves.py"].replace("for index in wave:", "for index in reversed(wave):", 1)
    broken = broken.replace("min(self.wave, interval.microbatches)", "1")
    assert broken.count("reversed") == 1
    (folder / "mine/waves.py").write_text(broken)
    done = run_command(COMMANDS[1], folder, "reports=reports")
    assert done.returncode == 2
    (file,) = (folder / "reports" / "records").glob("*.json")
    record = Record.read(file)
    assert record.outcome is Outcome.FAILED
    assert "0F2 would be forward number 2 in flight, the schedule promised 1" in record.reason
    assert "stage 0 | F3   [F2]" in record.reason


# -- a model, a machine, an experiment ------------------------------------------------------------------------------


@pytest.mark.slow("commands with a model and a machine of a user")
@pytest.mark.parametrize(
    "command",
    [c if "executor=" in c else pytest.param(c, marks=pytest.mark.exhaustive) for c in MORE_COMMANDS],
)
def test_documented_yaml_adds_system(command: str, folder: Path) -> None:
    """Each of the three commands leaves successful records of the systems in its YAML."""
    done = run_command(command, folder, *(SHORT if "simulated" not in command else ()), "reports=reports")
    assert done.returncode == 0, done.stdout + done.stderr
    records = [Record.read(file) for file in (folder / "reports" / "records").glob("*.json")]
    assert {record.outcome for record in records} == {Outcome.OK}
    if "model=gpt_mine" in command:
        assert [record.config["model"]["shape"]["layers"] for record in records] == [6]
    elif "machine=lab" in command:
        assert [record.config["executor"]["machine"]["name"] for record in records] == ["lab"]
    else:
        assert {record.label for record in records} == {"gpipe 2x1", "waves 2x1", "waves 2x1 wide"}
        losses = {record.series["loss"][-1] for record in records}
        assert max(losses) == pytest.approx(min(losses), rel=1e-5)
