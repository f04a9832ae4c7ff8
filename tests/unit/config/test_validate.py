"""Rules between keys: each is refused with its key, its rule and a legal value, before any rank starts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from suite.config.compose import composed, resolve
from suite.config.locate import search
from suite.config.run import RunConfig
from suite.core.errors import IllegalSchedule, InvalidRequest, SuiteError, Unsupported
from suite.core.values import format_typed
from suite.runner.runs import expand, freeze, validate_run
from tests.support.configs import altered, unchecked

E = TypeVar("E", bound=SuiteError)
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def base() -> RunConfig:
    return resolve([])


def refusal(config: RunConfig, kind: type[E] = InvalidRequest) -> E:  # type: ignore[assignment]
    """The refusal of a run, which is the same whether it is checked or frozen into a record's reason."""
    with pytest.raises(kind) as caught:
        validate_run(config)
    frozen = freeze(config.plain(), "").refusal
    assert (type(frozen), str(frozen)) == (type(caught.value), str(caught.value))
    return caught.value


def refused(base: RunConfig, changes: Mapping[str, Any]) -> InvalidRequest:
    """The refusal of a run of `base` with these values at dotted paths."""
    refusal = freeze(unchecked(base, changes), "").refusal
    assert isinstance(refusal, InvalidRequest)
    return refusal


def with_legal(config: RunConfig, error: InvalidRequest) -> RunConfig:
    """The config with the legal value of a refusal, `key=value`."""
    path, _, value = error.legal.partition("=")
    return config.changed({path: int(value)})


def test_the_default_is_accepted(base: RunConfig) -> None:
    validate_run(base)
    assert freeze(base.plain(), "").refusal is None


@pytest.mark.parametrize(
    ("data", "size", "microbatch", "legal"), [(1, 16, 3, 18), (2, 16, 3, 18), (3, 16, 2, 18), (5, 1, 1, 5)]
)
def test_indivisible_batch_is_refused(base: RunConfig, data: int, size: int, microbatch: int, legal: int) -> None:
    config = altered(base, grid__data=data, batch__size=size, batch__microbatch=microbatch)
    error = refusal(config)
    for part in (f"batch.size={size}", f"grid.data={data}", f"batch.microbatch={microbatch}"):
        assert part in str(error)
    assert (error.key, error.value) == ("batch.size", size)
    assert error.rule == "grid.data * batch.microbatch divides batch.size"
    assert error.legal == f"batch.size={legal}"
    validate_run(with_legal(config, error))


@pytest.mark.parametrize(("stages", "split"), [(7, "even"), (40, "even"), (7, "cost")])
def test_more_stages_than_layers_are_refused(base: RunConfig, stages: int, split: str) -> None:
    config = altered(base, grid__inter=stages, split=split)
    error = refusal(config)
    assert (error.key, error.value) == ("grid.inter", str(stages))
    assert error.rule == "every stage holds at least one layer"
    assert error.legal == "grid.inter=6"
    for legal in (1, 6):
        validate_run(altered(config, grid__inter=legal))


def test_too_many_ranks_are_refused(base: RunConfig) -> None:
    config = altered(base, grid__data=4, grid__inter=3, launch__max_ranks=11)
    error = refusal(config)
    assert str(error).startswith("12 ranks (grid.inter=3 grid.data=4); rule: ")
    assert (error.key, error.value) == ("launch.max_ranks", 11)
    assert error.rule == "launch=local starts at most launch.max_ranks=11"
    assert error.legal == "launch.max_ranks=12, or a smaller grid"
    validate_run(altered(config, grid__inter=2))
    validate_run(altered(config, launch__max_ranks=12))


def test_absent_data_folder_is_refused(base: RunConfig, tmp_path: Path) -> None:
    absent = tmp_path / "nowhere"
    config = resolve(["data=wikitext_103", f"data.folder={absent}"])
    error = refusal(config)
    assert f"there is no folder '{absent}'" in str(error)
    assert "wiki.train.tokens" in f"{error.rule} {error.legal}"
    absent.mkdir()
    for name in ("wiki.train.tokens", "wiki.valid.tokens"):
        (absent / name).write_text("text\n")
    validate_run(config)


def test_data_folder_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("text\n")
    config = resolve(["data=bookcorpus", f"data.folder={tmp_path}"])
    error = refusal(config)
    assert "holds train.txt" in str(error)
    assert "books_large_p1.txt and books_large_p2.txt" in str(error)
    (tmp_path / "books_large_p1.txt").write_text("text\n")
    refusal(config)
    (tmp_path / "books_large_p2.txt").write_text("")
    assert "empty: books_large_p2.txt" in str(refusal(config))
    (tmp_path / "books_large_p2.txt").write_text("text\n")
    validate_run(config)


@pytest.mark.parametrize(
    ("overrides", "key", "rule", "legal"),
    [
        (["model=vgg_narrow"], "data", "text is for a language model", "data=digits"),
        (["data=digits"], "data", "images are for a network of images", "model=vgg_narrow"),
        (["model=vgg_narrow", "data=digits", "model.shape.classes=9"], "model.shape.classes", "data=digits has 10", ""),
        (["model.shape.vocabulary=255"], "model.shape.vocabulary", "", ""),
    ],
)
def test_network_for_other_data_is_refused(overrides: list[str], key: str, rule: str, legal: str) -> None:
    error = refusal(resolve(overrides))
    assert error.key == key
    assert rule in error.rule
    assert legal in error.legal


def test_batch_norm_of_single_points_needs_two_samples() -> None:
    config = resolve(["model=wideresnet_narrow", "model.shape.image=16", "data=digits", "batch.microbatch=1"])
    error = refusal(config)
    assert (error.key, error.value) == ("batch.microbatch", 1)
    assert "with a WideResNet of model.shape.image=16" in str(error)
    assert "one point per image" in error.rule
    validate_run(with_legal(config, error))
    validate_run(resolve(["model=vgg_narrow", "data=digits", "batch.microbatch=1"]))


@pytest.mark.parametrize(
    ("overrides", "key", "value", "rule"),
    [
        (["system=deepspeed_3d", "grid.tensor=2"], "grid.tensor", 2, "only transformer blocks are split"),
        (["system=megatron_lm"], "system", "megatron_lm", "it trains networks of transformer blocks only"),
        (["system=sputnik"], "system", "sputnik", "it trains networks of transformer blocks only"),
    ],
)
def test_other_networks_than_transformers_are_refused(overrides: list[str], key: str, value: object, rule: str) -> None:
    error = refusal(resolve(["model=vgg_narrow", "data=digits", "optimizer=sgd", *overrides]), Unsupported)
    assert (error.key, error.value, error.rule) == (key, value, rule)


SCHEDULES = """
from suite.core.op import Kind, Op


class WithoutUpdate:
    def program(self, place, interval):
        for index in range(interval.first, interval.end):
            yield (Op(place.stage, Kind.FORWARD, index),)
            yield (Op(place.stage, Kind.BACKWARD, index),)

    def in_flight(self, place, interval):
        return 1


class BackwardFirst(WithoutUpdate):
    def program(self, place, interval):
        yield (Op(place.stage, Kind.BACKWARD, interval.first),)


class Greedy(WithoutUpdate):
    def program(self, place, interval):
        for index in range(interval.first, interval.end):
            yield (Op(place.stage, Kind.FORWARD, index),)


class NoSchedule:
    pass
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("WithoutUpdate", "0 updates of 1 run"),
        ("BackwardFirst", "0B0 comes before its forward"),
        ("Greedy", "0F1 would be forward number 2 in flight, the schedule promised 1"),
    ],
)
def test_illegal_schedule_is_refused(
    base: RunConfig, name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "schedules_of_a_user.py").write_text(SCHEDULES)
    monkeypatch.syspath_prepend(tmp_path)
    search([tmp_path])
    config = altered(base, schedule={"_target_": f"schedules_of_a_user.{name}"})
    message = str(refusal(config, IllegalSchedule))
    assert says in message
    assert "stage 0 |" in message  # the grid up to the fault
    sys.modules.pop("schedules_of_a_user")


def test_class_that_is_no_schedule_is_refused(base: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "schedules_of_a_user.py").write_text(SCHEDULES)
    monkeypatch.syspath_prepend(tmp_path)
    search([tmp_path])
    config = altered(base, schedule={"_target_": "schedules_of_a_user.NoSchedule"})
    assert "a Schedule; NoSchedule has no program() and no in_flight()" in str(refusal(config))
    sys.modules.pop("schedules_of_a_user")
    for path, says in (
        ("schedule_of_nobody.GPipe", "there is no module 'schedule_of_nobody'"),
        ("baselines.gpipe.GPip", "did you mean 'baselines.gpipe.GPipe'?"),
    ):
        error = refusal(altered(base, schedule={"_target_": path}))
        assert (error.key, error.value) == ("schedule._target_", path)
        assert says in str(error)
    error = refusal(altered(base, schedule={"_target_": "suite.schedule.MessageDriven", "limit": 3}))
    assert error.key == "schedule.limit"
    assert "schedule.cap, schedule.pipeline_limit, schedule.prefer" in error.rule
    error = refusal(altered(base, schedule__pipeline_limit=0))
    assert "pipeline_limit=0" in str(error)


def test_tensor_parallelism_is_refused_if_unsupported(base: RunConfig) -> None:
    config = altered(base, grid__tensor=2)
    error = refusal(config, Unsupported)
    assert (error.key, error.value, error.rule) == ("grid.tensor", 2, "axonn splits no layer")
    validate_run(with_legal(config, error))


@pytest.mark.parametrize("path", ["batch.size", "batch.microbatch"])
@pytest.mark.parametrize("value", [0, -2])
def test_run_without_training_batches_is_refused(base: RunConfig, path: str, value: int) -> None:
    config = altered(base, batch__size=1, batch__microbatch=1)
    error = refused(config, {path: value})
    assert (error.key, error.value, error.rule) == (path, value, "at least 1")
    validate_run(with_legal(config, error))


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [("warm_up", -1, 0), ("rounds", 0, 1), ("batches", 0, 1), ("eval_batches", -1, 0), ("deadline", 0, 120)],
)
def test_wrong_measure_settings_are_refused(base: RunConfig, name: str, value: int, legal: int) -> None:
    error = refused(base, {f"measure.{name}": value})
    assert (error.key, error.value, error.legal) == (f"measure.{name}", value, f"measure.{name}={legal}")
    validate_run(base.changed({f"measure.{name}": legal}))


@pytest.mark.parametrize("value", ["abc", None, float("nan"), -0.5])
def test_deadline_that_is_no_duration_is_refused(base: RunConfig, value: object) -> None:
    error = refused(base, {"measure.deadline": value})
    assert str(error).startswith(f"measure.deadline={format_typed(value)}; rule: ")
    assert (error.key, error.rule, error.legal) == ("measure.deadline", "more than 0 seconds", "measure.deadline=120")
    validate_run(altered(base, measure__deadline=0.5))


PATHS = ["grid.inter", "grid.data", "batch.size", "batch.microbatch", "launch.threads", "launch.max_ranks"]
PATHS += ["measure.rounds", "measure.eval_batches", "model.shape.layers", "model.shape.vocabulary"]


@pytest.mark.parametrize("value", ["x", 1.5, None, True, [1]], ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_fractional_count_is_refused(base: RunConfig, path: str, value: object) -> None:
    error = refused(base, {path: value})
    assert str(error).startswith(f"{path}={format_typed(value)}; rule: ")
    assert (error.key, error.rule) == (path, "a whole number")
    assert error.legal.startswith(f"{path}=")


@pytest.mark.parametrize(
    ("changes", "key", "rule", "legal"),
    [
        ({"launch.threads": 0}, "launch.threads", "at least 1", "launch.threads=1"),
        ({"model.shape.layers": 0}, "model.shape.layers", "at least 1", ""),
        ({"model.shape.heads": 3}, "model.shape.hidden", "heads divide", "heads=2"),
        ({"model.dtype": "float31"}, "model.dtype", "float64", "model.dtype=float32"),
        ({"split": "evn"}, "split", "even", "did you mean 'even'?"),
        ({"comm.transport": "gloom"}, "comm.transport", "gloo", "comm.transport=gloo"),
        ({"comm.order": "fixed"}, "comm.order", "one of any, static", ""),
        ({"comm.transport": "nccl"}, "comm.transport", "NCCL sends CUDA memory", "launch.device=cuda"),
        ({"launch.device": "tpu"}, "launch.device", "one of cpu, cuda", "launch.device=cpu"),
        ({"launch.binding": "cores"}, "launch.binding", "numa", "launch.binding=core"),
        (
            {"launch.binding": "core", "launch.launcher": "torchrun"},
            "launch.binding",
            "mpiexec and srun bind ranks",
            "launch.binding=none",
        ),
        ({"launch.launcher": "torchru"}, "launch.launcher", "srun", "launch.launcher=torchrun"),
        (
            {"launch.launcher": "torchrun", "comm.transport": "mpi"},
            "comm.transport",
            "started by mpiexec",
            "launch.launcher=mpiexec",
        ),
        (
            {"launch.launcher": "srun", "launch.nodes": 1, "launch.tasks_per_node": 1, "grid.inter": 3},
            "launch.nodes",
            "nodes * tasks_per_node is at least the number of ranks",
            "launch.nodes=3",
        ),
        (
            {"launch.heartbeat_interval": 5, "launch.heartbeat_timeout": 9},
            "launch.heartbeat_timeout",
            "twice launch.heartbeat_interval=5",
            "launch.heartbeat_timeout=60",
        ),
        ({"weights.graph": "recomput"}, "backward graph", "recompute", "did you mean 'recompute'?"),
        ({"optimizer.lr": -0.5}, "optimizer.lr", "not negative", "optimizer.lr=0.001"),
        ({"system.microbatches": 3}, "batch.microbatch", "it has 3", "batch.size=6"),
    ],
)
def test_other_illegal_values_are_refused(
    base: RunConfig, changes: dict[str, Any], key: str, rule: str, legal: str
) -> None:
    error = refused(base, changes)
    assert error.key == key
    assert rule in error.rule
    assert legal in error.legal


def test_timeout_of_two_heartbeats_is_accepted(base: RunConfig) -> None:
    validate_run(base.changed({"launch.heartbeat_interval": 5.0, "launch.heartbeat_timeout": 10.0}))


@pytest.mark.parametrize(
    ("overrides", "key", "rule"),
    [
        (
            ["system=pytorch"],
            "checkpoint.folder",
            "only systems on the suite's engine",
        ),
        (["executor=emulated"], "checkpoint.folder", "no ranks of a system train under it"),
        (["executor=simulated"], "checkpoint.folder", "no ranks of a system train under it"),
        (["executor=replay"], "checkpoint.folder", "no ranks of a system train under it"),
    ],
)
def test_run_without_checkpoints_is_not_resumed(overrides: list[str], key: str, rule: str) -> None:
    config = resolve(overrides)
    validate_run(config)
    resumed = config.changed({"checkpoint.folder": "somewhere"})
    error = refusal(resumed, Unsupported)
    assert (error.key, error.value, error.legal) == (key, "somewhere", "checkpoint.folder=null")
    assert rule in error.rule
    if overrides == ["system=pytorch"]:
        validate_run(resumed.changed({"system.supports_checkpoints": True}))


def test_graph_system_needs_a_graph_executor() -> None:
    error = refusal(resolve(["system=cagnet", "executor=check"]), Unsupported)
    assert (error.key, error.value, error.legal) == ("system", "cagnet", "executor=full_graph")
    assert error.rule == "it trains one whole graph"


def test_refused_run_stops_no_other_run() -> None:
    runs = expand(["experiment=smoke_grid", "batch.size=7"])
    assert [run.refusal is None for run in runs] == [False] * len(runs)
    mixed = expand(["experiment=smoke_grid", "batch.size=2"])
    assert [run.refusal is None for run in mixed] == [run.config.grid.data == 1 for run in mixed]
    assert {run.refusal is None for run in mixed} == {True, False}


def test_refusal_imports_no_torch() -> None:
    code = "import sys; from suite.runner.runs import expand; expand([]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["optimizer.bucket_numel=0"],
            "optimizer.bucket_numel=0; rule: at least 1; legal: optimizer.bucket_numel=16000000",
        ),
        (["optimizer.bucket_numel=1.5"], "optimizer.bucket_numel=1.5; rule: a whole number"),
        (["optimizer.bucket_numel=null"], "optimizer.bucket_numel=null"),
        (
            ["optimizer.buckets_per_reduction=0"],
            "optimizer.buckets_per_reduction=0; rule: at least 1, or null; legal: optimizer.buckets_per_reduction=4",
        ),
        (["optimizer.buckets_per_reduction=-1"], "optimizer.buckets_per_reduction=-1"),
        (["optimizer.clip_norm=0"], "optimizer.clip_norm=0; rule: above 0, or null"),
        (["optimizer.clip_norm=inf"], "optimizer.clip_norm=inf"),
        (
            ["activation_checkpointing=3"],
            "activation_checkpointing=3 on stages of 4 layers; .*: 1, 2, 4, auto or null; .*=4",
        ),
        (["activation_checkpointing=4", "grid.inter=2"], "activation_checkpointing=4 on stages of 2 layers"),
        (
            [
                "activation_checkpointing=4",
                "grid.inter=2",
                "split=cost",
                "model.shape.layers=8",
                "model.shape.vocabulary=2000",
            ],
            "activation_checkpointing=4 on stages of 5, 3 layers; .*: 1 or null; legal: activation_checkpointing=1",
        ),
        (["activation_checkpointing=often"], "activation_checkpointing=often"),
        (["activation_checkpointing=auto", "grid.inter=3"], "4 layers on 3 stages; rule: stages divide layers"),
        (["precision.half=float8"], "precision.half=float8; rule: one of auto, bfloat16, float16"),
        (["precision=bf16", "model.dtype=bfloat16"], "bfloat16 copies of bfloat16 weights"),
        (["precision=fp16", "precision.loss_scale.start=3"], "loss_scale.start=3; rule: a power of two"),
        (["precision=fp16", "precision.loss_scale.patience=0"], "loss_scale.patience=0"),
        (["memory.layout.sets=0"], "0 sets of buckets"),
        (["measure.validate=often"], "measure.validate=often; rule: one of end, every_round"),
    ],
)
def test_settings_of_precision_updates_and_checkpoints(overrides: list[str], message: str) -> None:
    refusal = freeze(composed(overrides), "").refusal
    assert isinstance(refusal, InvalidRequest)
    assert re.search(message, str(refusal))


def test_legal_settings_are_accepted() -> None:
    for overrides in (
        ["optimizer.buckets_per_reduction=null", "optimizer.clip_norm=1", "activation_checkpointing=2", "grid.inter=2"],
        ["precision=fp16", "memory=dense", "activation_checkpointing=auto"],
        ["activation_checkpointing=1", "grid.inter=3", "split=cost"],
        ["precision=bf16", "optimizer.bucket_numel=1", "memory.layout.sets=2", "model.dtype=float64"],
    ):
        validate_run(resolve(overrides))


@pytest.mark.parametrize("system", ["pytorch", "deepspeed_3d", "torch_gpipe", "megatron_lm"])
def test_pruning_with_a_peer_is_refused(system: str) -> None:
    error = freeze(composed([f"system={system}", "memory=samo", "pruning=magnitude"]), "").refusal
    assert isinstance(error, Unsupported)
    assert (error.key, error.value, error.legal) == ("pruning", "magnitude", "system=axonn_samo")
    assert error.rule == "systems on the suite's engine prune"


@pytest.mark.parametrize("system", ["axonn", "gpipe", "one_f_one_b", "naive", "axonn_samo"])
def test_every_system_of_the_engine_prunes(system: str) -> None:
    more = ["batch.microbatch=16"] if system == "naive" else []
    config = resolve([f"system={system}", "memory=samo", "pruning=magnitude", *more])
    assert freeze(config.plain(), "").refusal is None


@pytest.mark.parametrize(
    ("overrides", "key", "rule"),
    [
        (["pruning.sparsity=1"], "pruning.sparsity", "at least 0 and below 1"),
        (["pruning.sparsity=-0.1"], "pruning.sparsity", "at least 0 and below 1"),
        (["pruning.sparsity=many"], "pruning.sparsity", "at least 0 and below 1"),
        (["pruning.sparsity=true"], "pruning.sparsity", "at least 0 and below 1"),
        (["pruning.sparsity=0.9999"], "pruning.sparsity", "each weight keeps an entry"),
        (["pruning.scope=biases"], "pruning.scope", "one of weights, all"),
        (["memory=dense"], "pruning", "compressed states are those of memory=samo"),
        (["memory=offload"], "pruning", "compressed states are those of memory=samo"),
    ],
)
def test_impossible_masks_are_refused(overrides: list[str], key: str, rule: str) -> None:
    error = freeze(composed(["system=axonn_samo", *overrides]), "").refusal
    assert isinstance(error, InvalidRequest)
    assert (error.key, error.rule) == (key, rule)


def test_suggested_value_is_accepted() -> None:
    error = freeze(composed(["system=axonn_samo", "pruning.sparsity=0.9999"]), "").refusal
    assert isinstance(error, InvalidRequest)
    assert freeze(composed(["system=axonn_samo", error.legal]), "").refusal is None


@pytest.mark.parametrize("system", ["axonn_samo", "sputnik"])
def test_weight_beyond_32_bit_indices_is_refused(system: str) -> None:
    """Before any rank begins to draw it."""
    huge = ["model.shape.hidden=32768", "model.shape.heads=1", "model.shape.layers=1"]
    error = freeze(composed([f"system={system}", *huge]), "").refusal
    assert isinstance(error, InvalidRequest)
    assert "of a weight of 4294967296 entries" in str(error)
    assert error.rule.startswith("fewer than 2^31")


def test_shares_are_checked_on_modelled_machines_too() -> None:
    modelled = ["system=axonn_samo", "executor=simulated", "machine=summit", "model=gpt3_xl", "batch.size=64"]
    assert freeze(composed(modelled), "").refusal is None
    for wrong in ("pruning.sparsity=1", "pruning.sparsity=abc", "pruning.scope=bogus"):
        assert wrong.partition("=")[2] in str(freeze(composed([*modelled, wrong]), "").refusal)
