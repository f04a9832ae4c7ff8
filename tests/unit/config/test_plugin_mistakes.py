"""Plug-ins of docs/extending.md: they work from a user's folder, and mistakes are refused with their own names."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from suite.config import locate
from suite.core.errors import InvalidRequest, SuiteError
from suite.runner.runs import expand

EXTENDING = (Path(__file__).parents[3] / "docs/extending.md").read_text(encoding="utf-8")


def example(start: str, language: str) -> str:
    """The block of the document that begins with a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", EXTENDING, flags=re.DOTALL)
    return next(block for block in blocks if block.startswith(start))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's folder with the examples of docs/extending.md: the override that names it."""
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr(locate, "_folders", [])
    monkeypatch.delitem(sys.modules, "waves", raising=False)
    waves = example("# @package _global_\ndefaults:", "yaml")
    files = {
        "waves.py": example("from dataclasses", "python"),
        "system/waves.yaml": waves,
        "model/gpt_mine.yaml": example("name: gpt_mine", "yaml"),
        "machine/lab.yaml": example("_target_: suite.simulate.network.machine.Machine", "yaml"),
        "experiment/waves_and_gpipe.yaml": example("# @package _global_\nexperiment:", "yaml"),
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return f"launch.python_path=['{tmp_path}']"


SIZE = ["model=gpt3_xl", "grid.inter=4", "batch.size=64"]
WAVES = ["system=waves", "grid.inter=2"]
MODEL = ["model=gpt_mine", "system=axonn", "grid.inter=2"]
MACHINE = ["executor=simulated", "machine=lab", "system=axonn", "grid.data=4", *SIZE]
SIMULATED = ["executor=simulated", "machine=summit", "system=waves", *SIZE]
EXPERIMENT = ["experiment=waves_and_gpipe"]


@pytest.mark.parametrize("overrides", [WAVES, MODEL, MACHINE, SIMULATED, EXPERIMENT])
def test_examples_of_the_document_work(mine: str, overrides: list[str]) -> None:
    runs = expand([mine, *overrides])
    assert [run.refusal for run in runs] == [None] * len(runs)


LINK = "suite.simulate.network.machine.Link"
MISTAKES = [
    # the key and value, the rule, the legal value
    (WAVES, ["+schedule.wawe=4"], "schedule.wawe", "one of schedule.wave", "did you mean 'schedule.wave'"),
    (WAVES, ["schedule.wave=two"], "schedule.wave='two'", "a whole number", "schedule.wave=1"),
    (WAVES, ["schedule.wave=1.5"], "schedule.wave=1.5", "a whole number", "schedule.wave=1"),
    (WAVES, ["schedule.wave=true"], "schedule.wave=true", "a whole number", "schedule.wave=1"),
    (WAVES, ["~schedule.wave"], "there is no schedule.wave", "waves.Waves requires it", "schedule.wave=1"),
    (
        WAVES,
        ["schedule._target_=waves.Wave"],
        "schedule._target_=waves.Wave",
        "one of waves.Waves",
        "did you mean 'waves.Waves'",
    ),
    (
        WAVES,
        ["schedule._target_=wave.Waves"],
        "wave is in no such folder",
        "a folder of launch.python_path",
        "did you mean 'waves.Waves'",
    ),
    (WAVES, ["schedule._target_=waves.Op"], "schedule=waves.Op", "requires a Schedule; Op has no program()", "legal: "),
    (WAVES, ["schedule._target_=suite.weights.Latest"], "schedule=suite.weights.Latest", "requires a Schedule", ""),
    (WAVES, ["schedule._target_=os.system"], "os is in no such folder", "launch.python_path", "legal: "),
    (MODEL, ["+model.shape.layer=6"], "model.shape.layer'", "model.shape.layers", "did you mean 'model.shape.layers'"),
    (MODEL, ["model.shape.hidden=wide"], "model.shape.hidden=", "a whole number", "model.shape.hidden="),
    (MODEL, ["~model.shape.heads"], "there is no model.shape.heads", "Transformer requires it", "model.shape.heads=1"),
    (
        MODEL,
        ["model.shape._target_=suite.workload.Transfomer"],
        "suite.workload.Transfomer",
        "suite.workload.Transformer",
        "did you mean 'suite.workload.Transformer'",
    ),
    (
        MACHINE,
        ["+machine.within.latncy=1.0e-6"],
        "machine.within.latncy",
        "machine.within.latency",
        "did you mean 'machine.within.latency'",
    ),
    (
        MACHINE,
        ["machine.within.latency=fast"],
        "machine.within.latency='fast'",
        "a number",
        "machine.within.latency=1.0",
    ),
    (MACHINE, ["machine.memory=79G"], "machine.memory='79G'", "a number", "machine.memory=1.0"),
    (MACHINE, ["machine.peak=1.0e+12"], "machine.peak=", "a mapping, each value a number", "machine.peak={}"),
    (MACHINE, ["~machine.adapters"], "there is no machine.adapters", "Machine requires it", "adapters=1"),
    (
        MACHINE,
        [f"machine.host._target_={LINK}s"],
        f"{LINK}s",
        LINK,
        f"did you mean '{LINK}'",
    ),
    (
        MACHINE,
        ["machine.host={_target_: suite.schedule.OneFOneB}"],
        "machine.host=suite.schedule.OneFOneB",
        "requires a Link",
        "",
    ),
    (
        SIMULATED,
        ["+system.simulation.layout={_target_: suite.memory.mixed}"],
        "system.simulation.layout=suite.memory.mixed",
        "a function",
        "system.simulation.layout._partial_=true",
    ),
    (
        SIMULATED,
        ["system.simulation.activation_checkpointing=layers"],
        "system.simulation.activation_checkpointing=layers",
        "one of interval, layer, none",
        "system.simulation.activation_checkpointing=layer",
    ),
    (
        SIMULATED,
        ["+system.simulation.blocks=true"],
        "system.simulation.blocks",
        "one of ",
        "did you mean 'system.simulation.blocking_sends'",
    ),
    (
        SIMULATED,
        ["+system.simulation.bucket_numel=-1"],
        "system.simulation.bucket_numel=-1",
        "at least 0",
        "bucket_numel=4000000",
    ),
    (
        EXPERIMENT,
        ["experiment.expected_seconds=long"],
        "experiment.expected_seconds=long",
        "0 seconds",
        "experiment.expected_seconds=120",
    ),
]


@pytest.mark.parametrize(
    ("example", "mistake", "value", "rule", "legal"), MISTAKES, ids=[f"{each[0][0]} {each[1][0]}" for each in MISTAKES]
)
def test_mistake_is_refused_with_key_rule_and_legal_value(
    mine: str, example: list[str], mistake: list[str], value: str, rule: str, legal: str
) -> None:
    refusals: list[SuiteError | None]
    try:
        refusals = [run.refusal for run in expand([mine, *example, *mistake])]
    except InvalidRequest as error:
        refusals = [error]
    message = next(str(each) for each in refusals if each is not None)
    assert "\n" not in message
    for part in (value, rule, legal):
        assert part in message
