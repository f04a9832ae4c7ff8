"""Labels show what was given and is read; runs that differ have labels that differ."""

from __future__ import annotations

from suite.cli.sweep import label_flags
from suite.config.compose import combinations
from suite.core.errors import InvalidRequest
from suite.runner import labels
from suite.runner.runs import expand
from tests.support.refusals import refused


def label(*overrides: str) -> str:
    (run,) = expand(overrides)
    return run.label


def test_label_shows_settings_of_the_system() -> None:
    two = ("system=torch_pipelining", "schedule=gpipe", "grid.inter=2")
    assert label(*two, "system.fused=false") == "torch_gpipe 2x1 system.fused=false"
    assert label("system=deepspeed_3d", "system.zero_stage=1") == "deepspeed_3d 1x1 system.zero_stage=1"
    assert label("system=axonn", "system.name=mine") == "mine 1x1 system=axonn"
    assert label("system=pipeline", "schedule=zbv", "schedule.split=false") == "zbv 1x1 schedule.split=false"


def test_equal_labels_gain_the_overrides_that_differ() -> None:
    lines = "'system=axonn schedule.cap=2','system=axonn','system=axonn schedule.cap=2 measure.rounds=2'"
    run_labels = [run.label for run in expand([f"experiment.runs=[{lines}]"])]
    assert run_labels == ["axonn 1x1 schedule.cap=2", "axonn 1x1", "axonn 1x1 schedule.cap=2 measure.rounds=2"]


def test_sweep_labels_its_lines_by_varied_keys() -> None:
    words = ["system=axonn,gpipe", "measure.rounds=1,2", "measure.batches=3", "seed=range(1,3)", "launch.nodes=1"]
    lines = list(combinations(words))
    tagged = ["seed=0", "tag=seed 0"], ["seed=1", "tag=seed 1"]
    assert list(combinations(["seed=0,1", "tag=seed {seed}"])) == [*tagged]
    assert len(lines) == 8
    line = ["system=axonn", "measure.rounds=2", "measure.batches=3", "seed=2"]
    assert [*line, "launch.nodes=1"] in lines
    assert label_flags(words) == ["--label=measure.rounds"]
    assert label(*line, *label_flags(words)) == "axonn 1x1 measure.rounds=2 seed=2"
    assert label(*line) == "axonn 1x1 seed=2"
    assert label_flags(["system=axonn"], ["measure.batches"]) == ["--label=measure.batches"]
    with refused(InvalidRequest, "seed", rule="a sweep lists its values"):
        list(combinations(["seed=interval(1,2)"]))


def test_runs_of_equal_system_names_have_distinct_labels() -> None:
    """Configs of a user may share the name of a system. The label then shows the choice."""
    first, second = expand(["experiment.runs=['system=gpipe,naive system.name=x']"])
    assert first.label != second.label
    assert {"system=gpipe", "system=naive"} == {word for run in (first, second) for word in run.label.split()[2:]}


def test_indistinguishable_labels_are_refused() -> None:
    one, two = expand(["seed=1"])[0], expand(["seed=2"])[0]
    same = [one, labels.replace(two, label=one.label, command=one.command)]
    with refused(InvalidRequest, legal="tag=first, tag=second"):
        labels.make_distinct(same)
