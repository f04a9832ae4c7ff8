"""Commands of commands.txt: wrong ones are refused with key, value, rule and a legal value, which then works.

The user's folder holds the plug-ins of docs/extending.md and a few more. An ordinary run draws a part of the commands;
the exhaustive run has all.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from suite.cli.run import main
from suite.config import locate
from suite.config.places import check_rank_parts
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.runner.labels import key_of
from suite.runner.runs import expand
from tests.support.drawn import drawn
from tests.support.ranks import ROOT

EXTENDING = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
LONGEST = 340  # characters of a refusal, without the user's own folder
CODE = """from dataclasses import dataclass
from suite.schedule import MessageDriven
from suite.workload import Transformer

@dataclass(frozen=True)
class Capped(MessageDriven):
    slack: int = 2

@dataclass(frozen=True)
class Shape(Transformer):
    experts: int = 1

class Clipped:
    def __init__(self, lr: float, clip_norm: float = 1.0) -> None:
        self.lr = lr
"""
MODEL = """name: mine
network: suite.models.gpt
dropout: 0.0
dtype: float32
shape: {_target_: own_parts.Shape, layers: 2, hidden: 32, heads: 4, sequence: 16, vocabulary: 256}
"""
SIZE = "model=gpt3_xl grid.inter=4 batch.size=64"
LINK = "suite.simulate.network.machine.Link"
SHORT = {
    "XL": f"executor=simulated machine=summit efficiency=summit {SIZE} grid.data=4",
    "STUDY": "executor=messages grid.data=2",
    "EMULATED": "executor=emulated grid.inter=3 batch.size=6 batch.microbatch=1",
    "PLAN": "experiment=schedules",
    "WIDE": "model.shape.heads=1 model.shape.layers=1",
    "SIMULATED": f"executor=simulated machine=summit system=axonn {SIZE}",
    "GRAPH": "system=sparsity_aware grid.data=2",
    "UNTIED": "model.shape.tied=false grid.inter=2",
    "DIGITS": "data=digits optimizer=sgd",
    "COST": "grid.inter=2 split=cost model.shape.layers=8 model.shape.vocabulary=2000",
    "CHECK": "executor=check grid.inter=2",
    "DEEP": "model=vgg_narrow data=digits optimizer=sgd batch.size=8 grid.inter=4 measure.batches=9",
    "OWN": "launch.python_path=['{mine}']",
    "CAPPED": "launch.python_path=['{mine}'] schedule._target_=own_parts.Capped",
    "WAVES": "launch.python_path=['{mine}'] system=waves grid.inter=2",
    "SHAPE": "launch.python_path=['{mine}'] model=gpt_mine system=axonn grid.inter=2",
    "MACHINE": "launch.python_path=['{mine}'] executor=simulated machine=lab system=axonn grid.data=4 " + SIZE,
    "SIM_WAVES": "launch.python_path=['{mine}'] executor=simulated machine=summit system=waves " + SIZE,
    "PLANNED": "launch.python_path=['{mine}'] experiment=waves_and_gpipe",
    "LINK": LINK,
}
ROWS = [
    tuple(part.strip() for part in line.split("|"))
    for line in (Path(__file__).parent / "commands.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
REFUSED = {row[0]: row[1:] for row in ROWS if len(row) > 1}
ACCEPTED = [row[0] for row in ROWS if len(row) == 1]


def example(start: str, language: str) -> str:
    """The block of docs/extending.md that begins with a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", EXTENDING, flags=re.DOTALL)
    return next(block for block in blocks if block.startswith(start))


def write_own_files(folder: Path) -> None:
    """Write the files of a user's folder."""
    files = {
        "own_parts.py": CODE,
        "model/mine.yaml": MODEL,
        "waves.py": example("from dataclasses", "python"),
        "system/waves.yaml": example("# @package _global_\ndefaults:", "yaml"),
        "model/gpt_mine.yaml": example("name: gpt_mine", "yaml"),
        "machine/lab.yaml": example("_target_: suite.simulate.network.machine.Machine", "yaml"),
        "experiment/waves_and_gpipe.yaml": example("# @package _global_\nexperiment:", "yaml"),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A user's folder."""
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr(locate, "_folders", [])
    write_own_files(tmp_path)
    yield str(tmp_path)
    for module in ("own_parts", "waves"):
        sys.modules.pop(module, None)


def words_of(command: str, mine: str) -> list[str]:
    """The overrides of a command; the last one of a key stands."""
    long = re.sub(r"\b[A-Z_]{2,}\b", lambda match: SHORT.get(match[0], match[0]), command).replace("LINKs", f"{LINK}s")
    by_key: dict[str, str] = {}
    for word in long.replace("{mine}", mine).split():
        by_key.pop(key_of(word), None)
        by_key[key_of(word)] = word
    return list(by_key.values())


def refusal(words: Sequence[str]) -> str:
    """The text of the first refusal of a command, before or on its ranks; "None" if it can run."""
    try:
        for run in expand(words):
            if run.refusal is None and run.config.executor.trains:
                check_rank_parts(run.config)
            elif run.refusal is not None:
                raise run.refusal
    except InvalidRequest as error:
        return str(error)
    return "None"


def mended(words: Sequence[str], message: str) -> list[str]:
    """The command after the advice of its refusal: the nearest name in place of the misspelled one, or other values."""
    advice = message.rpartition("; legal: ")[2]
    if nearest := re.fullmatch(r"(?:did you mean )?'([^']+)'\??", advice):
        name = re.search(r"named '([^']*)'", message)
        wrong = name[1] if name else words[-1].partition("=")[2]
        at = next(number for number, word in enumerate(words) if wrong in word.lstrip("+").partition("=")[::2])
        word = words[at].replace(wrong, nearest[1]) if wrong else words[at] + nearest[1]
        return [*words[:at], *([f"+{word}"] if word.startswith("+") else [word]), *words[at + 1 :]]  # ++ adds or sets
    advice, _, without = advice.partition(" without ")
    first = re.split(r", | or ", advice)[0]
    changes = re.findall(r"[~+]?[\w.]+(?:=(?:\{[^}]*\}|\S+))?", first)
    assert " ".join(changes) == first, f"no command: {advice}"
    keys = {key_of(change) for change in changes}
    replaced = {key_of(word): word for word in words if key_of(word) in keys}
    other = [word for word in words if key_of(word) not in {*keys, without} and not is_group(word, message, changes)]
    overrides = [each.replace(" ", "") for each in changes if not each.startswith("~")]
    return [*other, *("+" * replaced.get(key_of(each), "").startswith("+") + each for each in overrides)]


def is_group(word: str, message: str, changes: Sequence[str]) -> bool:
    """Whether a word gives one value to a group of keys, of which the advice sets one."""
    return message.startswith(f"{word}; ") and changes[0].startswith(f"{key_of(word)}.")


@pytest.mark.parametrize("command", drawn(REFUSED, n=80))
def test_wrong_command_is_refused_and_its_advice_works(command: str, mine: str) -> None:
    words, (what, legal) = words_of(command, mine), REFUSED[command]
    message = refusal(words)
    assert "\n" not in message
    assert len(message.replace(mine, "")) <= LONGEST, message
    begin, _, rule = message.partition("; rule: ")
    assert rule
    for part in what.split() or words[-1].lstrip("+~").partition("=")[::2]:
        assert part.replace("LINK", LINK) in begin
    assert legal.removeprefix("!").replace("LINK", LINK) in rule
    if not legal.startswith("!"):
        after = mended(words, message)
        assert after != words
        assert refusal(after) == "None", after


@pytest.mark.parametrize("command", drawn(ACCEPTED, n=12))
def test_command_is_accepted(command: str, mine: str) -> None:
    assert {str(run.refusal) for run in expand(words_of(command, mine))} == {"None"}


def test_command_prints_its_refusal_and_ends_with_status_2(
    mine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for command in (
        "grid.iner=2",
        "system=axonn,gpipe",
        "batch.size=many",
        "grid.data=3",
        "SIMULATED executor.plan=best",
    ):
        words = words_of(command, mine)
        assert main([*words, f"reports={tmp_path / 'reports'}"]) == Exit.NOTHING
        output = "".join(capfd.readouterr())
        assert "Traceback" not in output
        assert words[-1].partition("=")[2 * ("iner" not in command)] in output.partition("; rule: ")[0]
