"""The tuner: candidates, their predicted order, and the plan that the measured times select."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from suite.cli.tune import main, systems
from suite.config.compose import resolve
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.core.grid import Grid
from suite.core.record import Metric, Outcome, Record, Source
from suite.runner import tune
from suite.runner.executors.registry import without_ranks
from suite.runner.progress import Progress
from suite.runner.runs import expand
from suite.runner.tune import Candidate, Choice, TuningResult, choose, list_candidates, plan_run, rank_candidates
from suite.simulate import search
from tests.support.refusals import refused

SMALL = ["batch.size=4", "machine=h200"]


@cache
def plans(system: str, devices: int, *overrides: str) -> dict[str, Candidate]:
    return {
        candidate.plan: candidate for candidate in list_candidates([f"system={system}", *SMALL, *overrides], devices)
    }


def record(samples: tuple[float, ...], group: str = "together", outcome: Outcome = Outcome.OK) -> Record:
    return Record(
        key="0" * 20,
        experiment="tuning",
        system="axonn",
        label="axonn",
        outcome=outcome,
        reason="" if outcome is Outcome.OK else "rank 0: said this\nand more",
        source=Source.MEASURED,
        config={},
        metrics={"batch_time": Metric("s", "lower", samples)} if samples else {},
        provenance={"turns": group},
    )


# -- candidates ----------------------------------------------------------------------------------------------------


def test_grids_cover_all_factorizations_of_the_devices() -> None:
    assert [*map(str, tune.grids(4, tensor=False))] == ["1x4", "2x2", "4x1"]
    assert [*map(str, tune.grids(4, tensor=True))] == ["1x4", "2x2", "4x1", "1x2x2", "2x1x2", "1x1x4"]


def test_candidates_combine_grids_with_microbatches() -> None:
    candidates = dict(plans("axonn", 2))
    assert list(candidates) == [f"{grid} microbatch {size}" for grid in ("1x2", "2x1") for size in (1, 2, 4)]
    assert candidates.pop("1x2 microbatch 4").reason.startswith("refused: batch.size=4 on grid.data=2 replicas")
    assert {candidate.reason for candidate in candidates.values()} == {""}
    run = candidates["2x1 microbatch 2"].run
    assert (run.grid, run.config.batch.microbatch) == (Grid(inter=2), 2)
    assert run.label == "axonn 2x1 batch.size=4 batch.microbatch=2"
    assert not {"tune", "machine"} & run.settings.keys(), "keys of the tuner would give equal runs two keys"
    assert [plan for plan, other in plans("naive", 2).items() if not other.reason] == [
        *("1x2 microbatch 2", "2x1 microbatch 4"),  # without pipelining a batch has one microbatch
    ]
    run = plan_run(["system=axonn", "tune.rounds=7", "tune.batches=3"], Grid(), 2)
    assert (run.config.measure.rounds, run.config.measure.batches) == (7, 3)
    assert run.config.experiment.name == "tuning"


def test_prediction_of_a_simulated_system_equals_its_simulated_run() -> None:
    candidate = plans("axonn", 2)["2x1 microbatch 2"]
    overrides = ["system=axonn", *SMALL, "executor=simulated", "grid.inter=2", "batch.microbatch=2"]
    config = resolve(overrides)
    batch_time = without_ranks(config.executor).run(config).metrics["batch_time"].values
    assert ((candidate.seconds,), candidate.method) == (batch_time, "simulated")


def test_system_without_a_model_is_predicted_by_the_closed_form() -> None:
    """torch_gpipe differs from the simulated gpipe in recomputation alone."""
    candidate = plans("torch_gpipe", 2, "schedule=gpipe")["2x1 microbatch 1"]
    config = resolve(["system=gpipe", *SMALL, "executor=simulated", "grid.inter=2", "batch.microbatch=1"])
    simulated = without_ranks(config.executor)
    recomputing = simulated.of(config)
    plan = replace(recomputing, system=replace(recomputing.system, activation_checkpointing="none"))
    assert candidate.method == "closed form"
    assert candidate.seconds == search.estimate(plan, simulated.machine, simulated.efficiency)
    assert candidate.seconds < search.estimate(recomputing, simulated.machine, simulated.efficiency)


@pytest.mark.parametrize("system", ["axonn", "torch_gpipe"])
def test_plan_beyond_the_device_memory_is_not_measured(system: str) -> None:
    """A larger microbatch needs more memory by the suite's own budget."""
    config = expand([f"system={system}", "batch.size=4", "grid.inter=2", "batch.microbatch=2"])[0].config
    room = max(budget.peak for budget in tune.estimate.budgets(config))
    reasons = [plans(system, 2, f"machine.memory={size}")["2x1 microbatch 2"].reason for size in (room, room - 1)]
    assert (reasons[0], reasons[1].partition(":")[0]) == ("", "does not fit")
    larger = plans(system, 2, f"machine.memory={room}")["2x1 microbatch 4"].reason
    assert larger.startswith("does not fit: ")
    assert larger.endswith(f"on a device of h200 with {tune.si(room, 'B')}")


def test_failed_prediction_of_a_plan_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    original = tune.estimate.budgets

    def budgets(config: RunConfig) -> list[Any]:
        if config.batch.microbatch == 1:
            raise IndexError("list index out of range")
        return original(config)

    monkeypatch.setattr(tune.estimate, "budgets", budgets)
    candidates = {candidate.plan: candidate for candidate in list_candidates(["system=axonn", *SMALL], 2)}
    assert candidates["2x1 microbatch 1"].reason.startswith("not predicted: IndexError")
    assert candidates["2x1 microbatch 2"].reason == ""
    assert rank_candidates([*candidates.values()])[0].reason == ""


def test_candidates_are_ranked_by_predicted_time() -> None:
    run = plan_run(["system=axonn", *SMALL], Grid(), 1)
    by_seconds = {seconds: Candidate(run, seconds) for seconds in (3.0, 1.0, 2.0)}
    too_large = Candidate(run, 0.5, reason="does not fit: 2 B on a device of x with 1 B")
    unpredicted = Candidate(run)
    order = rank_candidates([too_large, by_seconds[3.0], unpredicted, by_seconds[1.0], by_seconds[2.0]])
    assert [candidate.seconds for candidate in order] == [1.0, 2.0, 3.0, math.inf, 0.5]
    assert order[-1] is too_large


# -- the choice ----------------------------------------------------------------------------------------------------


def test_first_predicted_plan_within_the_spread_is_selected() -> None:
    for measured, selected, tied in (
        ([(2.0, 2.0, 2.0), (1.0, 1.0, 1.0)], 1, (1,)),
        ([(1.0, 1.0), (1.0, 1.0)], 0, (0, 1)),  # a tie
        ([(1.2, 1.2, 1.2), (0.5, 1.0, 1.5)], 0, (0, 1)),  # behind by less than the best's own spread
        ([(0.9, 1.2, 1.5), (1.0, 1.0, 1.0)], 0, (0, 1)),  # by less than its own
        ([(1.3, 1.35, 1.4), (0.95, 1.0, 1.05)], 1, (1,)),
        ([(9.0,) * 3, (1.1, 1.2, 1.3), (1.0, 1.1, 1.2)], 1, (1, 2)),
        ([(), (3.0,), (2.0,)], 2, (2,)),  # one sample each; the first did not end well
        ([(1.0, 1.0, 1.0, 1.0, 50.0), (2.0, 2.0, 2.0)], 0, (0,)),  # the median, not the mean
    ):
        assert choose(measured) == Choice(selected, tied), measured
        assert Choice(selected, tied).decided is (len(tied) == 1)
    assert [choose(measured) for measured in ([], [()], [(), ()])] == [None] * 3
    assert tune.batch_times(record((1.0,), outcome=Outcome.LOST_RANK)) == ()
    assert tune.batch_times(record((1.0, 2.0))) == (1.0, 2.0)


def test_records_of_separate_measurements_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reruns: list[list[str]] = []
    answers = [[record((1.0,), "first"), record((2.0,), "second")], [record((3.0,)), record((4.0,))]]

    def measure(runs: list[Any], progress: Progress) -> list[Record]:
        reruns.append([run.outline.rerun for run in runs])
        return answers[len(reruns) - 1]

    monkeypatch.setattr(tune, "measure", measure)
    runs = [plan_run(["system=axonn", *SMALL], Grid(), microbatch) for microbatch in (1, 2)]
    assert tune.measure_together(runs, Progress(1)) == answers[1]
    assert reruns == [["stale"] * 2, ["all"] * 2]
    assert runs[0].outline.rerun == "stale"


# -- output --------------------------------------------------------------------------------------------------------


@pytest.fixture
def tuned(tmp_path: Path) -> TuningResult:
    overrides = ["system=axonn", *SMALL, f"reports={tmp_path}"]
    runs = [plan_run(overrides, Grid(inter=2), 1), plan_run(overrides, Grid(data=2), 2), plan_run(overrides, Grid(), 1)]
    candidates = [Candidate(run, 0.001 * number, "simulated") for number, run in enumerate(runs, 1)]
    candidates += [Candidate(plan_run(overrides, Grid(data=2), 4), reason="refused: because")]
    measured = (record((0.004, 0.005, 0.006)), record((0.002,) * 3))
    return TuningResult("axonn", 2, tuple(candidates), measured, choose([tune.batch_times(each) for each in measured]))


def test_report_has_prediction_measurement_and_decision_per_plan(tuned: TuningResult) -> None:
    head, first, second, third, refused, decided = tune.report_lines(tuned)
    assert "4 plans, 1 refused, 2 measured" in head
    assert first.startswith("   1  2x1 microbatch 1  1.0 ms simulated, measured 5.0 ms, half of 3 in 4.5 to 5.5 ms")
    assert second.startswith("   2  1x2 microbatch 2  2.0 ms simulated, measured 2.0 ms, half of 3 in 2.0 to 2.0 ms")
    assert third.startswith("   3  1x1 microbatch 1  3.0 ms simulated")
    assert refused.endswith("1x2 microbatch 4  refused: because")
    assert decided.endswith("1x2 microbatch 2")
    tied = replace(tuned, choice=Choice(0, (0, 1)))
    assert tune.report_lines(tied)[-1].startswith("  undecided: 2x1 microbatch 1 and 1x2 microbatch 2 ")
    assert tied.selected is tied.candidates[0]
    failed = replace(tuned, measured=(record((), outcome=Outcome.OOM),), choice=None)
    assert tune.report_lines(failed)[1].endswith("oom, rank 0: said this")
    assert tune.write_plan(failed, []) is None


def test_plan_file_serves_as_run_and_experiment_entry(tuned: TuningResult, tmp_path: Path) -> None:
    overrides = ["machine=h200", "batch.size=4", "launch.binding=core", f"reports={tmp_path}", "tune.rounds=2"]
    path = tune.write_plan(tuned, overrides)
    assert path == tmp_path / "tuned" / "axonn-gpt_tiny-2.yaml"
    assert path is not None
    values = ["system=axonn", "model=gpt_tiny", "batch.size=4", "launch.binding=core"]
    values += ["grid.data=2", "grid.inter=1", "grid.tensor=1", "batch.microbatch=2"]
    (run,) = expand([f"@{path}", f"reports={tmp_path}"])
    (same,) = expand([*values, f"reports={tmp_path}"])
    assert (run.config, run.refusal) == (same.config, None)
    assert run.grid == Grid(data=2)
    runs = expand([f"experiment.runs=[['@{path}'],['system=gpipe']]", f"reports={tmp_path}"])
    assert [run.config.system.name for run in runs] == ["axonn", "gpipe"]
    assert runs[0].config.batch.plain() == {"size": 4, "microbatch": 2}


def test_each_precision_has_its_own_plan_file(tuned: TuningResult, tmp_path: Path) -> None:
    paths = []
    for name in ("full", "bf16", "fp16"):
        overrides = [*SMALL, f"reports={tmp_path}", f"precision={name}"]
        candidate = Candidate(plan_run(["system=axonn", *overrides], Grid(data=2), 2))
        paths.append(tune.write_plan(replace(tuned, candidates=(candidate,), choice=Choice(0, (0,))), overrides))
    stem = "axonn-gpt_tiny-2"
    assert [path.name for path in paths if path] == [f"{stem}.yaml", f"{stem}-bf16.yaml", f"{stem}-fp16.yaml"]
    (run,) = expand([f"@{paths[1]}", f"reports={tmp_path}"])
    assert run.config.precision.half == "bfloat16"


# -- refusals ------------------------------------------------------------------------------------------------------


IMPOSSIBLE: dict[str, tuple[str, Any]] = {  # override, and its key and value
    "tune.devices=0": ("tune.devices", 0),
    "tune.batches=-1": ("tune.batches", -1),
    "tune.devices=true": ("tune.devices", True),
    "tune.devcies=2": ("tune.devcies", "tune.devcies"),
    "grid.inter=2": ("grid.inter", "2"),
    "experiment=smoke": ("experiment", "smoke"),
    "executor=simulated": ("executor", "simulated"),
}


def test_impossible_tuning_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for override, (key, value) in IMPOSSIBLE.items():
        with refused(InvalidRequest, key, value):
            tune.tune("axonn", [*SMALL, override], Progress(1))
    assert main(["system=axonn", *SMALL, "tune.devices=0"]) == 2
    assert capsys.readouterr().err.startswith("refused: tune.devices=0; ")


def test_every_refused_plan_is_listed_with_its_reason(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["system=axonn", *SMALL, "tune.devices=3", "launch.max_ranks=2", f"reports={tmp_path}"]) == 2
    assert capsys.readouterr().out.count("refused: ") == 6
    assert not (tmp_path / "tuned").exists()


def test_systems_are_separated_by_commas() -> None:
    assert systems(["system=axonn,gpipe", "batch.size=4"]) == (["axonn", "gpipe"], ["batch.size=4"])
    assert systems(["batch.size=4"]) == (["axonn"], ["batch.size=4"])
