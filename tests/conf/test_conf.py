"""Every YAML under conf/ composes, builds and is accepted, and every experiment's runs are. Precedence of overrides.

A new file is tested by being there. An ordinary run draws a few choices of each group; the exhaustive run has all.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from suite.config.compose import combinations, compose_both, composed, resolve
from suite.config.families import CONF, groups
from suite.config.plugins import build
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, Unsupported
from suite.data.reading import LAYOUTS
from suite.memory.layout import Layout
from suite.runner.override_files import read_files
from suite.runner.runs import Run, expand, freeze
from suite.workload import LanguageModel, Transformer
from tests.support.drawn import EXHAUSTIVE, drawn, generator
from tests.support.modelled import systems
from tests.support.ranks import ROOT

OF_IMAGES = (
    *("alexnet", "alexnet_narrow", "googlenet", "googlenet_cifar", "googlenet_narrow", "inception_narrow"),
    *("resnet_101", "resnet_narrow", "vgg_16", "vgg_16_cifar", "vgg_16_narrow", "vgg_19", "vgg_narrow"),
    *("wideresnet_101", "wideresnet_narrow"),
)
SIMULATED_ONLY = ("llama2_13b", "llama2_70b", "llama2_7b", "llama3_405b", "llama3_70b", "llama3_8b", "mistral_7b")
UNTIED = "model.shape.tied=false"  # no stages that share a weight in an asynchronous pipeline
STREAM = f"update_interval=1 memory=dense {UNTIED}"
WANTED = {  # further overrides of a choice, next to the folders of corpora
    "executor=analytic": "executor.paper=axonn",
    "executor=published": "executor.figure=samo_memory",
    "executor=graph_clusters": "executor.figure=gnn_small",
    "executor=messages": "grid.data=2",
    "executor=full_graph": "system=sparsity_aware",
    "executor=volumes": "system=sparsity_aware",
    "data=digits": "model=vgg_narrow",
    "data=noise": "model=vgg_narrow",
    "data=snippets": "model=residual_lstm_narrow",
    "data=number_names": "model=gnmt_narrow",
    **{f"pruning={name}": "memory=samo" for name in ("early_bird", "magnitude", "random")},
    "pruning=saved": "memory=samo pruning.ticket.path=SOMEWHERE",
    **{f"graph={name}": "graph.source.file=SOMEWHERE" for name in ("edge_list", "matrix_market", "npz")},
    **{f"graph=ogbn_{name}": "graph.source.folder=SOMEWHERE" for name in ("arxiv", "papers100m", "products")},
    "graph=reddit": "graph.source.folder=SOMEWHERE",
    "partitioner=external": "partitioner.file=SOMEWHERE",
    **{f"model={name}": "data=digits" for name in OF_IMAGES},
    **{f"model={name}": "executor=simulated" for name in SIMULATED_ONLY},
    **{f"model={name}": "data=number_names" for name in ("gnmt_8", "gnmt_16", "gnmt_narrow")},
    "model=inception_v3": "data=digits model.shape.image=304",  # digits are enlarged a whole number of times
    "model=gcn": "system=sparsity_aware",
    "model=residual_lstm_narrow": "data=snippets",
    "model=residual_lstm": "data=snippets model.shape.classes=8",  # as many as snippets have
    **{f"system={name}": UNTIED for name in ("pipedream", "pipedream_2bw", "pipeoptim")},
    "system=spectrain": f"{UNTIED} optimizer=sgd",
    **{f"weights={name}": STREAM for name in ("stash", "double_buffer", "predict")},
    "weights=spectrain": f"{STREAM} optimizer=sgd",
    "schedule=torch_csv": f"schedule.file={ROOT / 'tests' / 'support' / 'one_rank.csv'}",
    "exchange=aware": "system=sparsity_aware",
    "exchange=oblivious": "system=cagnet",
}
PEERS = ("deepspeed_3d", "megatron_lm")  # whose own engines are no schedule of the suite's
PUBLISHED = {  # parameters in millions; of the language models those of the published checkpoints
    **{"gpt2_small": 124, "gpt3_2_7b": 2650, "gpt3_13b": 12850, "transformer_12b": 12000, "alexnet": 61.10},
    **{"vgg_16": 138.36, "vgg_16_cifar": 14.74, "resnet_101": 44.55, "googlenet": 6.62, "googlenet_cifar": 6.24},
    **{"inception_v3": 23.83, "residual_lstm": 1.87, "vgg_19": 143.67, "wideresnet_101": 126.89},
    **{"llama2_7b": 6740, "llama2_13b": 13020, "llama2_70b": 68980, "llama3_8b": 8030, "llama3_70b": 70600},
    **{"llama3_405b": 405900, "mistral_7b": 7240},
}
CHOICES = groups()


def overrides_of(group: str, choice: str) -> list[str]:
    """Overrides that choose it; a value that it wants from its user is given one."""
    if group == "cost":  # a part of an executor
        return ["executor=emulated", "grid.inter=2", f"cost@executor.cost={choice}"]
    folder = [f"{group}.folder=SOMEWHERE"] if choice in LAYOUTS else []
    # a choice is no worse for a machine that it does not fit
    return [f"{group}={choice}", *folder, *WANTED.get(f"{group}={choice}", "").split(), "launch.memory_check=false"]


# -- choices --------------------------------------------------------------------------------------------------


def check_memory(config: RunConfig, choice: str) -> None:
    layout = config.memory.layout.build()(entries=10, moments=("a", "b"), dtype="float32")
    assert isinstance(layout, Layout)
    assert layout.bytes() > 0


def check_optimizer(config: RunConfig, choice: str) -> None:
    """The reference steps by the same rule."""
    import torch

    from baselines.common import optimizer
    from suite.engine.optim.lr_schedule import as_rate

    rule = config.optimizer.build()
    theirs, rate = optimizer(config, [torch.nn.Parameter(torch.zeros(2))])
    assert rule.states
    assert as_rate(rule.lr)(0) > 0
    assert type(theirs).__name__ == type(rule).__name__
    assert (rate(0), theirs.defaults["weight_decay"]) == (as_rate(rule.lr)(0), rule.weight_decay)


def check_model(config: RunConfig, choice: str) -> None:
    from suite.engine.system import network

    shape = config.model.shape.build()
    if choice == "gcn":  # its layers want a product: tests/laws/test_graphs.py
        assert shape.parameters(300, 24) == 300 * 16 + 16 * 16 + 16 * 24
        return
    if choice in PUBLISHED:
        tolerance = 0.001 if choice in SIMULATED_ONLY else 0.05
        assert shape.parameters == pytest.approx(PUBLISHED[choice] * 1e6, rel=tolerance)
    builder = network(config)
    if isinstance(shape, LanguageModel):
        assert shape.parameters == sum(layer.parameters for layer in shape.shapes())
        return
    layers = builder.layers(shape, dropout=config.model.dropout, dtype=config.model.dtype)
    assert len(layers) == len(shape.shapes())
    if isinstance(shape, Transformer):
        assert len(layers) == shape.layers + 2
        assert len(builder.ties(shape)) == shape.tied


CHECKS: dict[str, Callable[[RunConfig, str], None]] = {
    **{"memory": check_memory, "optimizer": check_optimizer, "model": check_model},
}
DRAWN = [
    row
    for group, choices in CHOICES.items()
    if group != "experiment"
    for row in drawn([(group, choice) for choice in choices if choice != "profiled"], n=max(2, len(choices) // 6))
]


@pytest.mark.parametrize(("group", "choice"), DRAWN)
def test_choice_composes_builds_and_is_accepted(group: str, choice: str) -> None:
    config, unresolved = compose_both(overrides_of(group, choice))
    name = str(unresolved.get(group, {}).get("name", choice))
    assert name == choice or "${choices." in name
    run = freeze(config, "")
    if choice not in LAYOUTS:  # whose folder is not here
        assert run.refusal is None
    if group in CHECKS:
        CHECKS[group](run.config, choice)
    if group == "executor":
        sources = run.config.executor.sources
        assert sources or run.config.executor.kind in ("real", "replay")
        assert [folder for folder in sources if not list((CONF.parent / folder).glob("*.py"))] == []
    if group == "scale":
        experiments = [shlex.split(entry)[0] for entry in config["scale"]["reproduce"]]
        assert experiments
        assert set(experiments) <= set(CHOICES["experiment"])


def test_every_file_is_a_choice_of_a_group() -> None:
    shared = CONF / "experiment" / "shared"  # parts of experiments
    paths = [path for path in CONF.rglob("[!_]*.yaml") if path.parent != shared]
    files = {path.relative_to(CONF).with_suffix("").as_posix() for path in paths}
    assert files - {"config", "nightly"} <= {f"{group}/{choice}" for group in CHOICES for choice in CHOICES[group]}


@pytest.mark.parametrize("choice", drawn(systems(), n=4))
def test_simulated_system_is_accepted_and_the_same_in_figures(choice: str) -> None:
    """Also where another system is chosen, and after a run in which its own keys were changed."""
    assert freeze(composed([f"system={choice}", "executor=simulated"]), "").refusal is None
    composed(["executor=simulated", f"system={choice}", "++system.simulation.allreduces_per_update=3.0"])
    config = resolve([f"system={choice}"])
    wanted = [f"++executor.systems.{choice}=${{simulated_system:{choice}}}", "executor.figure=samo_memory"]
    system = composed(["system=naive", "executor=published", *wanted])["executor"]["systems"][choice]
    assert system == config.system.modelled(config.schedule.data())
    assert build(system).schedule == config.schedule.build()


# -- experiments ----------------------------------------------------------------------------------------------


def names_in(plan: dict[str, Any]) -> set[str]:
    """The labels that an experiment's runs must have: its reference and all of whom it expects something."""
    names = {plan["reference"]}
    for expected in plan["expect"]:
        versus = expected.get("versus")
        names |= {expected.get("system"), *(versus if isinstance(versus, list) else [versus])}
    return names - {None}


def entries_of(plan: dict[str, Any]) -> list[list[str]]:
    """The overrides of each of an experiment's runs."""
    return [entry for line in plan["runs"] for entry in combinations(read_files(shlex.split(line)))] or [[]]


def check_run(experiment: str, run: Run) -> None:
    if "nccl" in run.settings["executor"].get("backends", ()):  # a row that says why it is not here
        assert isinstance(run.refusal, Unsupported)
        assert "launch.device=cuda" in run.refusal.legal
    elif run.config.executor.name == "emulated" and run.config.system.name in PEERS:
        assert isinstance(run.refusal, InvalidRequest), "a row that says why its order is not emulated"
    elif run.config.system.name == "spectrain" and "Adam" in run.config.optimizer.target:
        assert isinstance(run.refusal, Unsupported), "a row that says what it predicts by"
    else:
        assert run.refusal is None, f"{run.label}: {run.refusal}"
    assert "runs" not in run.config.experiment.more
    assert run.config.experiment.name == experiment


@pytest.mark.parametrize("choice", drawn(CHOICES["experiment"], n=4))
def test_experiment_is_described_and_some_of_its_runs_are_accepted(choice: str) -> None:
    plan = composed(overrides_of("experiment", choice))["experiment"]
    assert plan["expected_seconds"] > 0
    entries = entries_of(plan)
    assert len({tuple(sorted(entry)) for entry in entries}) == len(entries), "two entries are one run"
    if len(entries) <= 5 or EXHAUSTIVE in os.environ:
        check_whole(choice)
        return
    for entry in generator(choice).sample(entries, 3):
        words = [f"experiment={choice}", *entry, "launch.memory_check=false"]
        check_run(choice, freeze(composed(words), ""))


def check_whole(experiment: str) -> None:
    plan = composed(overrides_of("experiment", experiment))["experiment"]
    runs = expand([f"experiment={experiment}", "launch.memory_check=false"])
    assert len({run.label for run in runs}) == len(runs) == len(entries_of(plan))
    for run in runs:
        check_run(experiment, run)
    if plan["runs"]:
        assert names_in(plan) <= {run.label for run in runs}
    assert freeze(composed(shlex.split(runs[-1].command)[2:]), "").config == runs[-1].config


# -- who wins -------------------------------------------------------------------------------------------------


def test_command_line_overrides_experiment_and_defaults() -> None:
    default, experiment = resolve([]), resolve(["experiment=overhead_bound"])
    assert default.batch.plain() == {"size": 16, "microbatch": 2}
    assert experiment.batch.plain() == {"size": 32, "microbatch": 1}
    assert (experiment.measure.warm_up, experiment.model.name) == (3, "gpt_overhead")
    assert experiment.measure.deadline == default.measure.deadline
    mine = resolve(["batch.size=64", "experiment=overhead_bound", "model=gpt_tiny"])
    assert mine.batch.plain() == {"size": 64, "microbatch": 1}
    assert mine.model.name == "gpt_tiny"


def test_in_every_run_of_an_experiment_the_command_line_wins() -> None:
    runs = expand(["experiment=smoke_grid", "system.description=mine", "grid.inter=3", "seed=9"])
    for run in runs:
        assert (run.config.system.description, run.config.grid.inter, run.config.seed) == ("mine", 3, 9)
    assert [run.config.system.name for run in runs] == ["pytorch", "axonn", "gpipe"]


# -- names ----------------------------------------------------------------------------------------------------


def test_resolved_configs_are_plain_data() -> None:
    config = composed(["system=naive"])
    assert json.loads(json.dumps(config)) == config
    for override in ("batch.size=[1", "system=", "optimizer=sgd,adam", "executor=null", "system=null"):
        with pytest.raises(InvalidRequest) as caught:
            resolve([override])
        assert "\n" not in str(caught.value)
