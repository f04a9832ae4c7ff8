"""Law 9: every YAML under conf/ composes and builds, alone and in every experiment. Precedence of overrides, and
refusals.

A new file is tested by being there.
"""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from suite.config.compose import CONF, check_names, composed, groups, register, resolve
from suite.config.executor import KINDS, starts_ranks
from suite.config.locate import locate
from suite.config.plugins import build
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from suite.core.grid import Grid
from suite.core.members import missing_members
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Schedule, WeightPolicy
from suite.core.trace import CATEGORY, Span
from suite.data import images, sentiment, text, translation
from suite.memory import Layout
from suite.runner.executors import registry
from suite.runner.override_files import read_files
from suite.runner.ranks.rank import KINDS as RANKS
from suite.runner.ranks.rank import rank_class
from suite.runner.runs import expand, freeze
from suite.schedule.check import check
from suite.workload import LanguageModel, Transformer
from tests.support.modelled import systems
from tests.support.ranks import ROOT
from tests.support.refusals import refused

OF_IMAGES = (
    *("alexnet", "alexnet_narrow", "googlenet", "googlenet_cifar", "googlenet_narrow", "inception_narrow"),
    *("resnet_101", "resnet_narrow", "vgg_16", "vgg_16_cifar", "vgg_16_narrow", "vgg_19", "vgg_narrow"),
    *("wideresnet_101", "wideresnet_narrow"),
)
SIMULATED_ONLY = ("llama2_13b", "llama2_70b", "llama2_7b", "llama3_405b", "llama3_70b", "llama3_8b", "mistral_7b")
UNTIED = ("model.shape.tied=false",)  # no stages that share a weight in an asynchronous pipeline
WANTED = {  # next to the folders of corpora
    ("executor", "analytic"): ("executor.paper=axonn",),
    ("executor", "published"): ("executor.figure=samo_memory",),
    ("executor", "graph_clusters"): ("executor.figure=gnn_small",),
    ("executor", "messages"): ("grid.data=2",),
    ("data", "digits"): ("model=vgg_narrow",),
    **{("pruning", name): ("memory=samo",) for name in ("early_bird", "magnitude", "random")},
    ("pruning", "saved"): ("memory=samo", "pruning.ticket.path=SOMEWHERE"),
    **{("graph", name): ("graph.source.file=SOMEWHERE",) for name in ("edge_list", "matrix_market", "npz")},
    ("partitioner", "external"): ("partitioner.file=SOMEWHERE",),
    **{
        ("graph", name): ("graph.source.folder=SOMEWHERE",)
        for name in ("cora", "ogbn_arxiv", "ogbn_papers100m", "ogbn_products", "reddit")
    },
    **{("model", name): ("data=digits",) for name in OF_IMAGES},
    **{("model", name): ("executor=simulated",) for name in SIMULATED_ONLY},
    ("model", "inception_v3"): ("data=digits", "model.shape.image=304"),  # digits are enlarged a whole number of times
    **{("system", name): UNTIED for name in ("pipedream", "pipedream_2bw", "pipeoptim")},
    ("system", "spectrain"): (*UNTIED, "optimizer=sgd"),
    **{
        ("weights", name): ("update_interval=1", "memory=dense", *UNTIED)
        for name in ("stash", "double_buffer", "predict")
    },
    ("weights", "spectrain"): ("update_interval=1", "memory=dense", "optimizer=sgd", *UNTIED),
    ("schedule", "torch_csv"): (f"schedule.file={ROOT / 'tests' / 'support' / 'one_rank.csv'}",),
    ("model", "gcn"): ("system=sparsity_aware",),
    ("executor", "full_graph"): ("system=sparsity_aware",),
    ("executor", "volumes"): ("system=sparsity_aware",),
    ("exchange", "aware"): ("system=sparsity_aware",),
    ("exchange", "oblivious"): ("system=cagnet",),
    ("data", "snippets"): ("model=residual_lstm_narrow",),
    ("model", "residual_lstm_narrow"): ("data=snippets",),
    ("model", "residual_lstm"): ("data=snippets", "model.shape.classes=8"),  # as many as snippets have
    ("data", "number_names"): ("model=gnmt_narrow",),
    **{("model", name): ("data=number_names",) for name in ("gnmt_8", "gnmt_16", "gnmt_narrow")},
}
LAYOUTS = {**text.LAYOUTS, **images.LAYOUTS, **sentiment.LAYOUTS, **translation.LAYOUTS}
READERS = {"imdb": "residual_lstm", "wmt16": "gnmt_8"}  # of folders that are neither text nor images
PEERS = ("deepspeed_3d", "megatron_lm")  # whose own engines are no schedule of the suite's
PARTS = ("cost",)  # never chosen alone: other choices hold them
CHOICES = [(group, choice) for group, choices in groups().items() for choice in choices]


@cache
def _resolved(overrides: tuple[str, ...]) -> RunConfig:
    return resolve(overrides)


@cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    return composed(overrides)


def config_of(group: str, choice: str) -> RunConfig:
    """The config of one choice; a value that it wants from its user is given one."""
    return _resolved(overrides_of(group, choice))


def overrides_of(group: str, choice: str) -> tuple[str, ...]:
    required = [f"{group}.folder=SOMEWHERE"] if choice in LAYOUTS else []
    checks = ["launch.memory_check=false"]  # a choice is no worse for a machine that it does not fit
    return (f"{group}={choice}", *required, *WANTED.get((group, choice), ()), *checks)


def test_every_file_is_a_choice_of_a_group() -> None:
    files = {path.relative_to(CONF).with_suffix("").as_posix() for path in CONF.rglob("*.yaml")}
    assert files == {"config", "nightly", *(f"{group}/{choice}" for group, choice in CHOICES)}
    assert {
        "system",
        "schedule",
        "weights",
        "memory",
        "model",
        "data",
        "optimizer",
        "experiment",
        "scale",
    } <= set(groups())


@pytest.mark.parametrize(("group", "choice"), [entry for entry in CHOICES if entry[0] not in (*PARTS, "experiment")])
def test_every_choice_composes(group: str, choice: str) -> None:
    """Experiments are composed, with their runs, by test_every_experiment_is_described_and_its_runs_accepted."""
    config = _composed(overrides_of(group, choice))
    assert group in config
    if "name" in config[group]:
        assert config[group]["name"] == choice
    run = freeze(config, "")
    if choice not in LAYOUTS:  # whose folder is not here
        assert run.refusal is None, run.refusal


@pytest.mark.parametrize("choice", systems())
def test_every_simulated_system_is_accepted(choice: str) -> None:
    config = _resolved((f"system={choice}", "executor=simulated"))
    assert freeze(config.plain(), "").refusal is None


@pytest.mark.parametrize("choice", systems())
def test_figures_simulate_systems_from_their_files(choice: str) -> None:
    """Also where another system is chosen, and after a run in which its own keys were changed."""
    composed(["executor=simulated", f"system={choice}", "++system.simulation.allreduces_per_update=3.0"])
    config = _resolved((f"system={choice}",))
    required = [f"++executor.systems.{choice}=${{simulated_system:{choice}}}", "executor.figure=samo_memory"]
    system = composed(["system=naive", "executor=published", *required])["executor"]["systems"][choice]
    assert system == config.system.modelled(config.schedule.data())
    assert build(system).schedule == config.schedule.build()


@pytest.mark.parametrize("choice", groups()["cost"])
def test_every_cost_model_costs_every_op(choice: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json.gz"
    ops = [Span(stage, CATEGORY[kind], 0.0, 1.0, Op(stage, kind, 0)).row() for stage in (0, 1) for kind in CATEGORY]
    content = {"grid": {"data": 1, "inter": 2, "tensor": 1}, "spans": ops}
    trace.write_bytes(gzip.compress(json.dumps(content).encode()))
    required = [f"executor.cost.trace={trace}"] if choice == "profiled" else []
    config = _resolved(("executor=emulated", "grid.inter=2", f"cost@executor.cost={choice}", *required))
    cost = config.executor.cost.build()
    assert all(cost.compute(Op(stage, kind, 0)) > 0 for stage in (0, 1) for kind in (Kind.FORWARD, Kind.BACKWARD))
    assert cost.update(1)


@pytest.mark.parametrize("choice", groups()["efficiency"])
def test_every_efficiency_says_why(choice: str) -> None:
    efficiency = build(_composed((f"efficiency={choice}",))["efficiency"])
    assert efficiency.name == choice
    assert efficiency.fitted or efficiency.reasons


@pytest.mark.parametrize("choice", [choice for choice in groups()["schedule"] if choice != "torch_csv"])
def test_every_schedule_builds_and_is_legal(choice: str) -> None:
    schedule = build(_composed(overrides_of("schedule", choice))["schedule"])
    assert not missing_members(schedule, Schedule)
    for stages in (1, 2, 5):
        assert check(schedule, stages, FlushInterval(0, 10, None, 0)).makespan >= 30


@pytest.mark.parametrize("choice", groups()["weights"])
def test_every_weight_policy_builds(choice: str) -> None:
    assert not missing_members(config_of("weights", choice).weights.build(), WeightPolicy)


@pytest.mark.parametrize("choice", groups()["memory"])
def test_every_memory_layout_builds(choice: str) -> None:
    layout = build(_composed(overrides_of("memory", choice))["memory"]["layout"])(
        entries=10, moments=("a", "b"), dtype="float32"
    )
    assert isinstance(layout, Layout)
    assert layout.bytes() > 0


@pytest.mark.parametrize("choice", groups()["optimizer"])
def test_every_optimizer_builds_as_the_reference_knows_it(choice: str) -> None:
    from baselines.pytorch import PyTorch
    from suite.comm.p2p.threads import Hub, LoopbackWorld
    from suite.engine.optim.lr_schedule import as_rate

    config = config_of("optimizer", choice)
    rule = config.optimizer.build()
    assert rule.states
    assert as_rate(rule.lr)(0) > 0
    theirs = PyTorch(LoopbackWorld(Hub(1), 0), config).optimizer
    assert type(theirs).__name__ == type(rule).__name__
    assert theirs.defaults["lr"] == as_rate(rule.lr)(0)
    assert theirs.defaults["weight_decay"] == rule.weight_decay


PUBLISHED = {
    "gpt2_small": 0.124e9,
    "gpt3_2_7b": 2.65e9,
    "gpt3_13b": 12.85e9,
    "transformer_12b": 12.0e9,
    "alexnet": 61.10e6,
    "vgg_16": 138.36e6,
    "vgg_16_cifar": 14.74e6,
    "resnet_101": 44.55e6,
    "googlenet": 6.62e6,
    "googlenet_cifar": 6.24e6,
    "inception_v3": 23.83e6,
    "residual_lstm": 1.87e6,
    "vgg_19": 143.67e6,
    "wideresnet_101": 126.89e6,
}
PUBLISHED_LANGUAGE_MODELS = {  # totals of the published checkpoints
    "llama2_7b": 6.74e9,
    "llama2_13b": 13.02e9,
    "llama2_70b": 68.98e9,
    "llama3_8b": 8.03e9,
    "llama3_70b": 70.6e9,
    "llama3_405b": 405.9e9,
    "mistral_7b": 7.24e9,
}


@pytest.mark.parametrize("choice", groups()["model"])
def test_every_model_builds(choice: str) -> None:
    from suite.engine.system import network

    config = config_of("model", choice)
    shape = config.model.shape.build()
    if choice == "gcn":  # its layers want a product: tests/laws/test_graphs.py
        assert shape.parameters(300, 24) == 300 * 16 + 16 * 16 + 16 * 24
        return
    builder = network(config)
    if isinstance(shape, LanguageModel):
        assert shape.parameters == pytest.approx(PUBLISHED_LANGUAGE_MODELS[choice], rel=0.001)
        assert shape.parameters == sum(layer.parameters for layer in shape.shapes())
        for build_part in (lambda: builder.layers(shape, dropout=0.0, dtype="float32"), lambda: builder.ties(shape)):
            with refused(Unsupported, "model.network", rule="simulated only", legal="executor=simulated"):
                build_part()
        return
    layers = builder.layers(shape, dropout=config.model.dropout, dtype=config.model.dtype)
    assert len(layers) == len(shape.shapes())
    if isinstance(shape, Transformer):
        assert len(layers) == shape.layers + 2
        assert len(builder.ties(shape)) == shape.tied
    assert callable(builder.loss)
    if choice in PUBLISHED:
        assert shape.parameters == pytest.approx(PUBLISHED[choice], rel=0.05)


@pytest.mark.parametrize("choice", groups()["system"])
def test_every_system_is_a_class_with_the_protocols_methods(choice: str) -> None:
    config = config_of("system", choice)
    system = locate(config.system.target)
    for method in ("probe", "train_batch", "evaluate", "observe", "memory", "close"):
        assert callable(getattr(system, method)), method
    assert {"name", "paper", "description", "has_memory_model"} <= config.system.plain().keys()


@pytest.mark.parametrize("choice", groups()["executor"])
def test_every_executor_builds_and_names_its_sources(choice: str) -> None:
    executor = _resolved(overrides_of("executor", choice)).executor
    if not executor.starts_ranks:
        built = registry.without_ranks(executor)
        assert callable(built.run)
        assert callable(built.check)
    else:
        assert rank_class(executor).__init__
        assert (registry.stand_in(executor) is None) == executor.trains
    assert executor.sources or executor.kind in ("real", "replay")
    for folder in executor.sources:
        assert list((CONF.parent / folder).glob("*.py")), folder


def test_each_kind_of_executor_has_a_choice_and_its_classes() -> None:
    chosen = {_composed(overrides_of("executor", choice))["executor"]["kind"] for choice in groups()["executor"]}
    assert chosen == {*KINDS}
    assert {kind for kind in KINDS if starts_ranks(kind)} == {*RANKS}
    for method in ("train_batch", "stream", "score", "observe", "memory", "close"):
        assert callable(getattr(registry.replay(), method))
    assert callable(registry.preparation().check)


@pytest.mark.parametrize("choice", groups()["data"])
def test_every_corpus_has_a_loader_and_a_check(choice: str, tmp_path: Path) -> None:
    config = config_of("data", choice)
    source = config.data.source
    assert callable(locate(source.target))
    if config.data.folder is None:
        assert source.build().provenance()["bytes"] > 0
        return
    of_text = choice in text.LAYOUTS
    for names in LAYOUTS[choice]:
        name = names[0] if of_text else names
        path = tmp_path / name
        if of_text or path.suffix:
            path.parent.mkdir(exist_ok=True)
            path.write_text("text\n" * 50)
        else:
            path.mkdir(parents=True)
            (path / "0_1.txt").write_text("a review")
    reader = [] if of_text else [f"model={READERS.get(choice, 'wideresnet_101')}"]
    run = freeze(composed([f"data={choice}", f"data.folder={tmp_path}", *reader]), "")
    assert run.refusal is None, run.refusal
    assert run.config.data.source.arguments["folder"] == str(tmp_path)


@pytest.mark.parametrize("choice", groups()["launch"])
def test_every_launcher_says_what_it_needs(choice: str) -> None:
    launch = _composed(overrides_of("launch", choice))["launch"]
    assert {"threads", "max_ranks", "memory_limit", "grace", "python_path", "mpiexec"} <= launch.keys()


# -- experiments and scales -----------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", groups()["scale"])
def test_every_experiment_of_every_scale_exists(choice: str) -> None:
    entries = _composed(overrides_of("scale", choice))["scale"]["reproduce"]
    assert entries
    assert len(set(entries)) == len(entries)
    assert {shlex.split(entry)[0] for entry in entries} <= set(groups()["experiment"])


@cache
def runs_of(experiment: str) -> list[Any]:
    return expand([f"experiment={experiment}", "launch.memory_check=false"])


def kinds(entry: list[str]) -> set[tuple[str, ...]]:
    """The system on its executor, and the model."""
    words_of = {of: [word for word in entry if word.startswith(f"{of}=")] for of in ("system", "executor", "model")}
    return {("on", *words_of["system"], *words_of["executor"]), ("of", *words_of["model"])}


@cache
def spread() -> dict[str, set[int]]:
    """Few entries of each experiment: the first, and over all experiments one for each system on each executor and one
    for each model. Plans are read, not composed."""
    entries = {}
    for name in groups()["experiment"]:
        plan = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text())["experiment"]
        entries[name] = [read_files(entry) for entry in plan.get("runs") or ()]
    selected = {name: {0} for name, choices in entries.items() if choices}
    covered = set().union(*(kinds(entries[name][0]) for name in selected))
    for name, some in selected.items():
        for at, entry in enumerate(entries[name]):
            if not kinds(entry) <= covered:
                some.add(at)
                covered |= kinds(entry)
    return selected


def likeness(entry: list[str], label: str) -> int:
    """How much of an entry's values a label tells."""
    values = [word.partition("=")[2] for word in entry]
    return sum(len(value) for value in values if value in label) + 100 * (label.split(maxsplit=1)[0] in values)


def some_runs_of(experiment: str, plan: dict[str, Any]) -> list[Any]:
    """Among an experiment's runs: the runs of `spread`, its reference, and the runs in its expectations."""
    entries = [read_files(entry) for entry in plan["runs"]]

    def frozen(entry: list[str]) -> Any:
        words = [f"experiment={experiment}", *entry]
        return freeze(composed([*words, "launch.memory_check=false"]), shlex.join(["suite", "run", *words]))

    runs = {at: frozen(entries[at]) for at in sorted(spread()[experiment])}
    for name in sorted(names_in(plan)):
        for at in sorted(range(len(entries)), key=lambda at: -likeness(entries[at], name)):
            if any(run.label == name for run in runs.values()):
                break
            if at not in runs:
                runs[at] = frozen(entries[at])
    return list(runs.values())


def names_in(plan: dict[str, Any]) -> set[str]:
    """The labels that an experiment's runs must have: its reference and all of whom it expects something."""
    names = {plan["reference"]}
    for expected in plan["expect"]:
        versus = expected.get("versus")
        names |= {expected.get("system"), *(versus if isinstance(versus, list) else [versus])}
    return names - {None}


def check_runs(experiment: str, runs: list[Any], plan: dict[str, Any]) -> None:
    labels = [run.label for run in runs]
    assert len(set(labels)) == len(labels)
    for run in runs:
        if "nccl" in run.settings["executor"].get("backends", ()):  # a row that says why it is not here
            assert isinstance(run.refusal, Unsupported)
            assert "launch.device=cuda" in str(run.refusal)
        elif run.config.executor.name == "emulated" and run.config.system.name in PEERS:
            assert isinstance(run.refusal, InvalidRequest), "a row that says why its order is not emulated"
        elif run.config.system.name == "spectrain" and "Adam" in run.config.optimizer.target:
            assert isinstance(run.refusal, Unsupported), "a row that says what it predicts by"
        else:
            assert run.refusal is None, f"{run.label}: {run.refusal}"
        assert "runs" not in run.config.experiment.more
        assert run.config.experiment.name == experiment
    if plan["runs"]:
        assert names_in(plan) <= set(labels)


@pytest.mark.parametrize("choice", groups()["experiment"])
def test_every_experiment_is_described_and_its_runs_accepted(choice: str) -> None:
    plan = _composed(overrides_of("experiment", choice))["experiment"]
    assert {"name", "title", "question", "paper", "paper_ref", "reference", "expected_seconds", "expect"} <= plan.keys()
    assert plan["expected_seconds"] > 0
    entries = [sorted(entry) for entry in plan["runs"]]
    assert all(entries.count(entry) == 1 for entry in entries), "two entries are one run"
    check_runs(choice, some_runs_of(choice, plan) if entries else runs_of(choice), plan)


@pytest.mark.exhaustive
@pytest.mark.parametrize("choice", groups()["experiment"])
def test_every_run_of_every_experiment_is_accepted(choice: str) -> None:
    runs = runs_of(choice)
    plan = _composed(overrides_of("experiment", choice))["experiment"]
    assert len(runs) == max(1, len(plan["runs"])), "two entries are one run"
    check_runs(choice, runs, plan)
    assert freeze(composed(shlex.split(runs[-1].command)[2:]), "").config == runs[-1].config


# -- who wins -------------------------------------------------------------------------------------------------


def test_command_line_overrides_experiment_and_defaults() -> None:
    default, experiment = resolve([]), resolve(["experiment=overhead_bound"])
    assert default.batch.plain() == {"size": 16, "microbatch": 2}
    assert experiment.batch.plain() == {"size": 32, "microbatch": 1}
    assert experiment.measure.warm_up == 3
    assert experiment.model.name == "gpt_overhead"
    assert experiment.measure.deadline == default.measure.deadline
    mine = resolve(["batch.size=64", "experiment=overhead_bound", "model=gpt_tiny"])
    assert mine.batch.plain() == {"size": 64, "microbatch": 1}
    assert mine.model.name == "gpt_tiny"


def test_in_every_run_of_an_experiment_the_command_line_wins() -> None:
    runs = expand(["experiment=smoke_grid", "system.description=mine", "grid.inter=3", "seed=9"])
    assert {run.config.system.description for run in runs} == {"mine"}
    assert {run.config.grid.inter for run in runs} == {3}
    assert {run.config.seed for run in runs} == {9}
    entries = resolve(["experiment=smoke_grid"]).experiment.runs
    assert [run.config.system.name for run in runs] == [entry[0].partition("=")[2] for entry in entries]


def test_a_system_chooses_its_own_axes() -> None:
    assert resolve(["system=gpipe"]).schedule.target == "baselines.gpipe.GPipe"
    assert resolve(["system=one_f_one_b"]).schedule.target == "suite.schedule.OneFOneB"
    assert resolve(["system=gpipe", "schedule=message_driven"]).schedule.arguments["prefer"] == "backward"


@pytest.mark.parametrize(
    ("overrides", "microbatch"),
    [
        ([], 16),
        (["grid.data=2"], 8),
        (["batch.size=12", "grid.data=3"], 4),
        (["batch.size=7", "grid.data=2"], 3),
        (["batch.size=1", "grid.data=2"], 1),
        (["batch.microbatch=5"], 5),
    ],
)
def test_per_replica(overrides: Sequence[str], microbatch: int) -> None:
    assert resolve(["system=naive", *overrides]).batch.microbatch == microbatch


def test_per_replica_accepts_illegal_sizes() -> None:
    register()
    settings = OmegaConf.create({"size": 8, "replicas": 0, "each": "${per_replica:${size},${replicas}}"})
    assert settings.each == 8
    run = freeze(composed(["system=naive", "batch.size=7", "grid.data=2"]), "")
    assert isinstance(run.refusal, InvalidRequest)
    assert freeze(composed(["system=naive", "grid.data=2"]), "").refusal is None
    assert resolve(["system=naive", "grid.data=2"]).microbatches == 1


# -- names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("experiment=axonn_fig100", "axonn_fig10"),
        ("schedule=one_forward_one_back", "one_f_one_b"),
        ("microbatch=2", "batch.microbatch"),
    ],
)
def test_unknown_name_gets_the_nearest(override: str, nearest: str) -> None:
    with pytest.raises(UnknownName) as caught:
        resolve([override])
    assert f"did you mean '{nearest}'?" in str(caught.value)
    assert override.partition("=")[0 if "." in nearest else 2] in str(caught.value)


def test_unknown_key_lists_the_keys_of_its_group() -> None:
    with refused(UnknownName, "grid.intr", rule="one of grid.data, grid.inter, grid.tensor"):
        resolve(["grid.intr=2"])
    with refused(UnknownName, "zzzzzz", rule="names, such as "):
        resolve(["zzzzzz=2"])


def test_a_key_of_another_choice_is_unknown() -> None:
    with refused(UnknownName, "optimizer.momentum"):
        resolve(["optimizer.momentum=0.5"])
    assert resolve(["optimizer=sgd", "optimizer.momentum=0.5"]).optimizer.arguments["momentum"] == 0.5


def test_a_sweep_names_several_choices() -> None:
    check_names(["system=axonn,gpipe", "model='gpt_tiny'", "grid.inter=1,2", "batch=null"])
    with refused(UnknownName, "system", "axonnn"):
        check_names(["system=gpipe,axonnn"])


@pytest.mark.parametrize("choice", LAYOUTS)
def test_required_value_is_named_by_its_key(choice: str) -> None:
    with refused(
        InvalidRequest, subject="data.folder has no value", rule="this choice requires one", legal="data.folder=VALUE"
    ):
        resolve([f"data={choice}"])


@pytest.mark.parametrize("override", ["batch.size=[1", "grid.inter", "system=", "optimizer=sgd,adam"])
def test_unreadable_override_is_refused_in_one_line(override: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        resolve([override])
    assert "\n" not in str(caught.value)


def test_resolved_configs_are_plain_data() -> None:
    config = composed(["system=naive"])
    assert "hydra" not in config
    assert json.loads(json.dumps(config)) == config
    assert Grid(**config["grid"]) == Grid()


@pytest.mark.parametrize(
    ("override", "in_label"),
    [
        ("launch.threads=2", True),
        ("launch.binding=none", True),
        ("launch.launcher=torchrun", True),
        ("optimizer.lr=0.01", True),
        ("launch.deadline=7", False),
        ("measure.rounds=1", False),
        ("on_error=stop", False),
    ],
)
def test_label_holds_the_settings_that_affect_time(override: str, in_label: bool) -> None:
    """Two records of one label stand for one another, so they may differ in nothing that makes one slower."""
    usual, other = runs_of("smoke_grid"), expand(["experiment=smoke_grid", override])
    for run, changed in zip(usual, other, strict=True):
        assert changed.label == (f"{run.label} {override}" if in_label else run.label)
