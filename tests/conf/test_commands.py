"""Command lines of claims that need a data set or a GPU.

Every command is read word by word. A few, drawn anew every day, are composed and put before the parent's refusals with
tiny folders of the published layouts; the exhaustive run has all of them.
"""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from suite.claims import load
from suite.claims.claim import Claim
from suite.cli import dataset_info
from suite.config.compose import composed
from suite.config.run import RunConfig
from suite.data.reading import LAYOUTS
from suite.runner.runs import freeze
from tests.support.drawn import generator

TRAINING = ["suite", "sweep", "experiment=pipeoptim_published"]


@cache
def rows() -> dict[str, Claim]:
    return {claim.id: claim for claim in load.claims() if claim.paper == "pipeoptim"}


@cache
def commands() -> dict[str, str]:
    return {name: claim.command for name, claim in rows().items() if claim.command}


def command(name: str) -> str:
    return commands()[f"pipeoptim.{name}"]


@cache
def parts() -> tuple[tuple[str, ...], ...]:
    """The words of every different command."""
    lines = [line for one in commands().values() for line in one.split(" && ")]
    return tuple(dict.fromkeys(tuple(shlex.split(line)) for line in lines))


@cache
def swept() -> tuple[tuple[str, ...], ...]:
    """The first and the last run of every sweep."""
    runs: list[tuple[str, ...]] = []
    for words in parts():
        if list(words[:3]) != TRAINING:
            continue
        choices = []
        for override in OverridesParser.create().parse_overrides(list(words[2:])):
            key = str(override.key_or_group)
            values = list(override.sweep_string_iterator()) if override.is_sweep_override() else [override.input_line]
            choices.append([one if "=" in str(one) else f"{key}={one}" for one in (values[0], values[-1])])
        runs += [tuple(first for first, _ in choices), tuple(last for _, last in choices)]
    return tuple(dict.fromkeys(runs))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published layouts, with next to nothing in them."""
    root = tmp_path_factory.mktemp("data")
    for name, inside in LAYOUTS.items():
        for path in (root / name / (part if isinstance(part, str) else part[0]) for part in inside):
            file = path if path.suffix else path / "0_1.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("text\n" * 50)
    return root


def accepted(run: tuple[str, ...], folder: Path) -> RunConfig:
    """The config of one run, which no parent refuses."""
    frozen = freeze(composed([word.replace("FOLDER", str(folder)) for word in run]), "")
    assert frozen.refusal is None, (run, frozen.refusal)
    assert frozen.config.launch.device == "cuda"
    assert frozen.config.grid.plain() == {"data": 1, "inter": 4, "tensor": 1}
    assert frozen.config.measure.validate_when == "every_round"
    return frozen.config


def test_claims_that_need_data_or_a_gpu_have_commands() -> None:
    wanting = {name for name, claim in rows().items() if claim.reach in ("data", "gpu")}
    assert commands().keys() == wanting
    assert len([name for name in wanting if rows()[name].reach == "data"]) == 110
    for words in parts():
        assert list(words[:3]) == TRAINING or (words[1] == "dataset-info" and words[2] in dataset_info.sources())


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_commands_are_accepted_by_validation(every: bool, folder: Path) -> None:
    assert {word for run in swept() for word in run if word.startswith("system=")} == {
        f"system={name}" for name in ("naive", "gpipe", "pipedream", "pipedream_2bw", "spectrain", "pipeoptim")
    }
    for run in swept() if every else generator("commands").sample(swept(), 3):
        accepted(run, folder)
