"""Keys that change nothing in a run are refused: each key of a config is varied under each executor.

A key that an executor declares changes a result, or SAME has the reason why it does not here. Any other key changes
none."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from suite.comm.p2p.threads import Hub, LoopbackWorld
from suite.config.base import Settings
from suite.config.compose import compose_both, register, resolve
from suite.config.families import groups
from suite.config.locate import locate
from suite.config.places import check_parts
from suite.config.refusals import every_key
from suite.config.run import RunConfig, checked_run
from suite.core.errors import DoesNotFit, InvalidRequest, MissingDependency, SuiteError
from suite.core.values import leaves
from suite.runner.executors.registry import without_ranks
from suite.runner.keys_read import BOOKKEEPING, DECLARED, below, instead, overlaps, reads
from suite.runner.runs import expand, freeze
from suite.runner.store import deciding_keys
from tests.support.drawn import generator
from tests.support.refusals import refused

STREAM = ("update_interval=1", "model.shape.tied=false", "batch.microbatch=4")
CASES: dict[str, tuple[str, ...]] = {  # runs without ranks, small enough to be made for each key
    "check": ("executor=check", "grid.inter=3", "grid.data=2"),
    "check, a stream": ("executor=check", "grid.inter=3", "weights=predict", *STREAM),
    "simulated blocks": ("executor=simulated", "model=gpt3_xl", "grid.inter=4", "grid.data=4", "batch.size=64"),
    "simulated pruned": ("executor=simulated", "system=axonn_samo", "grid.inter=2", "grid.data=2"),
    "simulated search": ("executor=simulated", "executor.plan=search", "grid.data=4"),
    "simulated layers": (
        *("executor=simulated", "executor.account=layers", "system=pipeoptim", "grid.inter=2", "grid.data=2"),
        *("optimizer=sgd", "precision=fp16", "precision.loss_scale.start=1", "precision.loss_scale.most=1"),
    ),
    "volumes": ("executor=volumes", "system=sparsity_aware", "graph.source.vertices=2048", "grid.data=4"),
}
SAME: dict[str, tuple[str, ...]] = {  # keys that are read and change no result of a case, by the reason
    "selects the keys that the run has": ("executor.kind",),
    "a velocity is held whatever the momentum is": ("optimizer.momentum",),
    "ends of a pipeline that add no gradients of a shared weight do not say so in a time": ("model.shape.tied",),
    "orders a pipeline whose time hardly any order changes": ("schedule.prefer",),
    "is text": ("machine.source",),
    "is the peak of full precision": ("machine.peak.float32",),
    "belongs to a part of the machine that this run does not use": (
        *(f"machine.{link}.{part}" for link in ("within", "between", "host") for part in ("latency", "bandwidth")),
        "machine.adapters",
    ),
    "selects kernels of flash attention, which no case has": ("machine.family",),
    "is a rate": ("efficiency", "executor.efficiency", "executor.machine"),
}
SAME_IN: dict[str, tuple[str, ...]] = {
    "simulated pruned": ("system.simulation.layout.sparsity",),  # pruning.sparsity decides
    "simulated layers": ("machine.compute_units",),  # spreads tiles of large products, and layers have one rate
    "simulated search": (
        # more than a stage of gpt_tiny holds
        *("system.simulation.bucket_numel", "system.simulation.layout.bucket"),
        *("system.simulation.buckets_per_reduction", "optimizer.buckets_per_reduction"),
        # order several microbatches, and the plan that is found has one per replica
        *("schedule._target_", "schedule.pipeline_limit", "schedule.cap"),
    ),
    # values of features, where a plan counts rows; the order of owners, which without replicas is one
    "volumes": ("graph.source.signal", "exchange.assignment"),
}


@cache
def both(case: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    return compose_both(case)


def changed(case: str, key: str, value: Any) -> dict[str, Any]:
    """The resolved config with another value of one key; names of choices stay as they are."""
    register()
    composed, unresolved = both(CASES[case])
    config, resolved_names = OmegaConf.create(deepcopy(unresolved)), dict(leaves(composed))
    for name, text in leaves(unresolved):
        if "${choices." in str(text):
            OmegaConf.update(config, name, resolved_names[name])
    if key.endswith("._target_") and key.removesuffix("._target_") in CLASSES:  # another class has other arguments
        key, value = key.removesuffix("._target_"), {"_target_": value}
    OmegaConf.update(config, key, value, merge=False)
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    return {str(name): part for name, part in resolved.items()}


OTHERS = {  # of text: another value of the same kind
    "even": ("cost",), "weights": ("all",), "float32": ("float64", "bfloat16"), "float16": ("bfloat16",),
    "paper": ("authors", "auto", "lean", "interleaved"), "recompute": ("keep", "swap"), "keep": ("recompute",),
    "fused": ("staged",), "given": ("search",), "search": ("given",), "auto": ("layers", "gloo"), "layers": ("blocks",),
    "interval": ("layer", "none"), "layer": ("none", "interval"), "none": ("both", "forward"),
    "both": ("none",), "backward": ("forward",), "end": ("every_round",), "velocity": ("next",),
}  # fmt: skip
CLASSES = {
    "schedule": "baselines.gpipe.GPipe",
    "optimizer": "suite.engine.optim.optimizer.SGD",
    "weights": "suite.weights.Stash",
    "partitioner": "suite.gnn.partition.simple.Block",
}


def values(key: str, value: Any) -> Iterator[Any]:
    """Other values of a key, most often legal ones."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, 2 * value, 4 * value, max(1, value // 2), 10_000 * value, 0)
    elif isinstance(value, float):
        yield from (value * 2, value / 2, value + 0.5, value * 1e4, value * 1e-4, 0.5)
    elif isinstance(value, str):
        if key.endswith("_target_"):
            yield from (CLASSES[group] for group in CLASSES if key == f"{group}._target_")
        yield from OTHERS.get(value, ())
        yield f"{value}_other"
    elif value is None:
        yield from (1, 3, 0.5, "bfloat16", True, "auto", {"_target_": "suite.pruning.magnitude.Magnitude"})
    elif isinstance(value, list):
        yield from ([*value, *value], value[:1])


def outcome_alone(config: dict[str, Any]) -> Any:
    """Result of a run without ranks, or the reason of its refusal; None where the value is of no use to any run."""
    try:
        check_parts(checked_run(config))
    except (SuiteError, KeyError, TypeError, ValueError, AttributeError):
        return None
    run = freeze(deepcopy(config), "")
    if run.refusal is not None:
        return "refused"
    try:
        executed = without_ranks(run.config.executor).run(run.config)
    except DoesNotFit:
        return "does not fit"
    except InvalidRequest:
        return "refused"
    except MissingDependency:
        return None
    metrics = {
        name: (one.values, one.note)
        for name, one in executed.metrics.items()
        if name not in ("partition_time", "epochs_to_repay")
    }
    return metrics, executed.memory, executed.series, executed.panels, executed.notes


def outcomes(case: str, key: str, value: Any) -> tuple[Any, list[Any]]:
    """The result of a case, and those with other values of one key up to the first that differs."""
    usual, outcomes_seen = usual_result(case), []
    for other in values(key, value):
        try:
            varied = changed(case, key, other)
        except (OmegaConfBaseException, TypeError, ValueError):
            continue
        if (outcome := outcome_alone(varied)) is not None:
            outcomes_seen.append(outcome)
            if outcome != usual:
                break
    return usual, outcomes_seen


@cache
def usual_result(case: str) -> Any:
    return outcome_alone(deepcopy(both(CASES[case])[0]))


def check_key(case: str, key: str, value: Any) -> str:
    """The fault in the entry of one key; empty where it is right."""
    usual, outcomes_seen = outcomes(case, key, value)
    config, unresolved = both(CASES[case])
    if instead(key, freeze(config, "").config, unresolved) is not None:
        changes = any(outcome not in (usual, "refused") for outcome in outcomes_seen)
        return f"{key} changes a result and is refused" if changes else ""
    same = (key for keys in SAME.values() for key in keys)
    named = key.endswith(("_target_", "_partial_")) and key != "schedule._target_"  # the config has its arguments
    unchanged = named or below(key, [*BOOKKEEPING, *DECLARED, *same, *SAME_IN.get(case, ())])
    return "" if unchanged or any(o != usual for o in outcomes_seen) else f"{key} changes nothing and is taken"


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("case", CASES)
def test_key_changes_a_result_or_is_refused(case: str, every: bool) -> None:
    """A few keys of the day; the exhaustive run: every key."""
    assert usual_result(case) not in (None, "refused", "does not fit")
    keys = list(leaves(both(CASES[case])[0]))
    spare = ["experiment", "scale", "launch", "machine", "efficiency"]
    few = [entry for entry in keys if not below(entry[0], spare)]
    checked = keys if every else generator(case).sample(few, 4)
    assert [fault for key, value in checked if (fault := check_key(case, key, value))] == []


@pytest.mark.parametrize(
    "overrides", [("executor=analytic", "executor.paper=samo"), ("executor=published", "executor.figure=samo_memory")]
)
def test_figure_executor_reads_only_its_own_keys(overrides: tuple[str, ...]) -> None:
    """It is made from them, and carries out a config without any other."""
    executor = without_ranks(checked_run(both(overrides)[0]).executor)
    executor.check(None)
    assert executor.run(None).metrics


def tracked(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The dotted keys that are looked up in a configuration from now on."""
    seen: set[str] = set()
    paths = {
        id(value): f"{name}." for name in RunConfig.model_fields if isinstance(value := getattr(config, name), Settings)
    }
    look_up = Settings.__getattribute__

    def noted(group: Settings, name: str) -> Any:
        value = look_up(group, name)
        path = "" if group is config else paths.get(id(group))
        if path is not None and name in type(group).model_fields and not isinstance(value, Settings):
            seen.add(f"{path}{type(group).model_fields[name].alias or name}")
        return value

    monkeypatch.setattr(Settings, "__getattribute__", noted)
    return seen


# read by what drives a system's ranks, or only checked
HARNESS = ("comm", "checkpoint", "data", "schedule", "system._target_")


@pytest.mark.parametrize(
    "overrides",
    [
        ("system=axonn_samo", "precision=bf16"),
        pytest.param(("system=sputnik", "precision=bf16"), marks=pytest.mark.exhaustive),
        ("system=pytorch", "precision=bf16"),
        ("system=pipeoptim", "model.shape.tied=false"),
    ],
)
def test_system_reads_the_keys_that_it_declares(overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    config = freeze(both(overrides)[0], "").config
    declared, system_class = config.system.reads, locate(config.system.target)
    assert declared is not None
    with monkeypatch.context() as patch:
        seen = tracked(config, patch)
        system_class.probe(config)
        system_class(world=LoopbackWorld(Hub(1), 0, device="cpu"), config=config)
    assert {key for key in seen if not overlaps(key, [*declared, *BOOKKEEPING, *DECLARED, "launch"])} == set()
    assert {key for key in declared if not overlaps(key, [*seen, *HARNESS])} == set()


@pytest.mark.parametrize("group", ["executor", "system"])
def test_every_executor_and_system_declares_what_it_reads(group: str) -> None:
    required = {"analytic": ("executor.paper=samo",), "published": ("executor.figure=samo_memory",)}
    for choice in groups()[group]:
        further = required.get(choice, ("executor.figure=gnn_fig3",) if choice == "graph_clusters" else ())
        assert reads(checked_run(both((f"{group}={choice}", *further))[0])) is not None, choice


XL = "executor=simulated machine=summit efficiency=summit model=gpt3_xl grid.inter=4 grid.data=4 batch.size=64"


def test_every_key_of_the_models_is_read_or_bookkeeping() -> None:
    engine = resolve(["system=axonn", "launch=slurm"])
    graph = resolve(["system=sparsity_aware", "executor=full_graph"])
    simulated = resolve(XL.split())
    covered = {*BOOKKEEPING, *DECLARED, *(reads(engine) or ()), *(reads(graph) or ()), *(reads(simulated) or ())}
    assert [key for key in every_key(RunConfig) if key != "graph.holdings" and not overlaps(key, covered)] == []


def test_command_line_key_applies_to_runs_that_read_it() -> None:
    pair, key = "experiment.runs=['system=pytorch,axonn']", "optimizer.buckets_per_reduction=2"
    usual = expand([pair])[0]
    alone, pipeline = expand([pair, key])
    assert (alone.label, alone.refusal) == ("pytorch 1x1", None)
    assert deciding_keys({**alone.settings, "experiment": {}}) == deciding_keys({**usual.settings, "experiment": {}})
    assert pipeline.label == f"axonn 1x1 {key}"
    assert pipeline.config.optimizer.buckets_per_reduction == 2
    with refused(InvalidRequest, "machine", "h200"):
        expand([pair, "machine=h200"])
