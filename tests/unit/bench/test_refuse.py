"""Decides whether what cannot run is refused in the parent, with the numbers, the rule and a value that passes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from configs import altered, unchecked

from suite.bench import refuse
from suite.bench.runs import expand, freeze
from suite.config.compose import composed, resolve
from suite.config.locate import search
from suite.config.run import RunConfig
from suite.core.errors import IllegalSchedule, Refused, SuiteError, UnknownName, Unsupported
from suite.core.values import typed

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def base() -> RunConfig:
    return resolve([])


def refusal(config: RunConfig, kind: type[SuiteError] = Refused) -> str:
    """The message, the same whether the run is checked or frozen into a record's reason."""
    with pytest.raises(kind) as caught:
        refuse.check(config)
    frozen = freeze(config.plain(), "").refusal
    assert (type(frozen), str(frozen)) == (type(caught.value), str(caught.value))
    return str(caught.value)


def refused(base: RunConfig, changes: Mapping[str, Any]) -> str:
    """The refusal of a run of `base` with these values at dotted paths."""
    refusal = freeze(unchecked(base, changes), "").refusal
    assert isinstance(refusal, Refused)
    return str(refusal)


def with_legal(config: RunConfig, message: str) -> RunConfig:
    """The config with the legal value of a message that ends with `legal: key=value`."""
    path, _, value = message.rpartition("legal: ")[2].partition("=")
    return config.changed({path: int(value)})


def test_the_default_is_accepted(base: RunConfig) -> None:
    refuse.check(base)
    assert freeze(base.plain(), "").refusal is None


@pytest.mark.parametrize(
    ("data", "size", "microbatch", "legal"), [(1, 16, 3, 18), (2, 16, 3, 18), (3, 16, 2, 18), (5, 1, 1, 5)]
)
def test_a_batch_that_grid_and_microbatch_do_not_divide(
    base: RunConfig, data: int, size: int, microbatch: int, legal: int
) -> None:
    config = altered(base, grid__data=data, batch__size=size, batch__microbatch=microbatch)
    message = refusal(config)
    for part in (f"batch.size={size}", f"grid.data={data}", f"batch.microbatch={microbatch}", "divides batch.size"):
        assert part in message
    assert message.endswith(f"legal: batch.size={legal}")
    refuse.check(with_legal(config, message))


@pytest.mark.parametrize(("stages", "split"), [(7, "even"), (40, "even"), (7, "cost")])
def test_more_stages_than_layers(base: RunConfig, stages: int, split: str) -> None:
    config = altered(base, grid__inter=stages, split=split)
    message = refusal(config)
    assert f"grid.inter={stages} for 6 layers" in message
    assert message.endswith("legal: grid.inter=6")
    for legal in (1, 6):
        refuse.check(altered(config, grid__inter=legal))


def test_too_many_ranks(base: RunConfig) -> None:
    config = altered(base, grid__data=4, grid__inter=3, launch__max_ranks=11)
    message = refusal(config)
    assert message.startswith(
        "12 ranks (grid.inter=3 grid.data=4); rule: launch=local starts at most launch.max_ranks=11"
    )
    assert message.endswith("legal: launch.max_ranks=12, or a smaller grid")
    refuse.check(altered(config, grid__inter=2))
    refuse.check(altered(config, launch__max_ranks=12))


def test_an_absent_data_folder(base: RunConfig, tmp_path: Path) -> None:
    absent = tmp_path / "nowhere"
    config = resolve(["data=wikitext_103", f"data.folder={absent}"])
    message = refusal(config)
    assert f"there is no folder '{absent}'" in message
    assert "wiki.train.tokens" in message
    assert message.endswith("legal: the folder that holds wiki.train.tokens or wiki.train.raw") or "legal: " in message
    absent.mkdir()
    for name in ("wiki.train.tokens", "wiki.valid.tokens"):
        (absent / name).write_text("text\n")
    refuse.check(config)


def test_a_folder_of_another_form(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("text\n")
    config = resolve(["data=bookcorpus", f"data.folder={tmp_path}"])
    message = refusal(config)
    assert "holds train.txt" in message
    assert "books_large_p1.txt and books_large_p2.txt" in message
    (tmp_path / "books_large_p1.txt").write_text("text\n")
    refusal(config)
    (tmp_path / "books_large_p2.txt").write_text("")
    assert "empty: books_large_p2.txt" in refusal(config)
    (tmp_path / "books_large_p2.txt").write_text("text\n")
    refuse.check(config)


def test_a_network_reads_what_it_is_for(base: RunConfig) -> None:
    message = refusal(resolve(["model=vgg_narrow"]))
    assert message == "data=standard_library with a VGG; rule: text is for a language model; legal: data=digits"
    refuse.check(resolve(["model=vgg_narrow", "data=digits"]))
    message = refusal(resolve(["data=digits"]))
    assert (
        message == "data=digits with a Transformer; rule: images are for a network of images; legal: model=vgg_narrow"
    )
    assert "classes=9; rule: data=digits has 10" in refusal(
        resolve(["model=vgg_narrow", "data=digits", "model.shape.classes=9"])
    )
    assert "model.shape.vocabulary=255 on bytes" in refusal(altered(base, model__shape__vocabulary=255))


def test_a_batch_norm_of_single_points_needs_two_images() -> None:
    config = resolve(["model=wideresnet_narrow", "model.shape.image=16", "data=digits", "batch.microbatch=1"])
    message = refusal(config)
    assert "batch.microbatch=1 with a WideResNet of model.shape.image=16" in message
    refuse.check(with_legal(config, message))
    refuse.check(resolve(["model=vgg_narrow", "data=digits", "batch.microbatch=1"]))


def test_what_only_transformers_have_is_refused_by_name() -> None:
    images = ["model=vgg_narrow", "data=digits", "optimizer=sgd"]
    message = refusal(resolve([*images, "system=deepspeed_3d", "grid.tensor=2"]), Unsupported)
    assert message.startswith("grid.tensor=2 with a VGG; rule: what is split are transformer blocks")
    for system in ("megatron_lm", "sputnik"):
        message = refusal(resolve([*images, f"system={system}"]), Unsupported)
        assert message.startswith(f"system={system} with a VGG; rule: it has transformer blocks alone")


SCHEDULES = """
from suite.core.op import Kind, Op


class WithoutUpdate:
    def program(self, place, work):
        for index in range(work.first, work.end):
            yield (Op(place.stage, Kind.FORWARD, index),)
            yield (Op(place.stage, Kind.BACKWARD, index),)

    def in_flight(self, place, work):
        return 1


class BackwardFirst(WithoutUpdate):
    def program(self, place, work):
        yield (Op(place.stage, Kind.BACKWARD, work.first),)


class Greedy(WithoutUpdate):
    def program(self, place, work):
        for index in range(work.first, work.end):
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
def test_an_illegal_schedule(
    base: RunConfig, name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "schedules_of_a_user.py").write_text(SCHEDULES)
    monkeypatch.syspath_prepend(tmp_path)
    search([tmp_path])
    config = altered(base, schedule={"_target_": f"schedules_of_a_user.{name}"})
    message = refusal(config, IllegalSchedule)
    assert says in message
    assert "stage 0 |" in message  # the grid up to the fault
    sys.modules.pop("schedules_of_a_user")


def test_what_is_no_schedule(base: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "schedules_of_a_user.py").write_text(SCHEDULES)
    monkeypatch.syspath_prepend(tmp_path)
    search([tmp_path])
    config = altered(base, schedule={"_target_": "schedules_of_a_user.NoSchedule"})
    assert "a Schedule; NoSchedule has no program() and no in_flight()" in refusal(config)
    sys.modules.pop("schedules_of_a_user")
    assert "there is no module 'schedule_of_nobody'" in refusal(
        altered(base, schedule={"_target_": "schedule_of_nobody.GPipe"})
    )
    assert "did you mean 'baselines.gpipe.GPipe'?" in refusal(
        altered(base, schedule={"_target_": "baselines.gpipe.GPip"}), UnknownName
    )
    arguments = {"_target_": "suite.schedule.MessageDriven", "limit": 3}
    assert "schedule.cap, schedule.pipeline_limit, schedule.prefer" in refusal(altered(base, schedule=arguments))
    assert "pipeline_limit=0" in refusal(altered(base, schedule__pipeline_limit=0))


def test_a_tensor_axis(base: RunConfig) -> None:
    config = altered(base, grid__tensor=2)
    message = refusal(config, Unsupported)
    assert message == "grid.tensor=2; rule: axonn splits no layer; legal: grid.tensor=1"
    refuse.check(with_legal(config, message))


@pytest.mark.parametrize("path", ["batch.size", "batch.microbatch"])
@pytest.mark.parametrize("value", [0, -2])
def test_nothing_to_train_on(base: RunConfig, path: str, value: int) -> None:
    config = altered(base, batch__size=1, batch__microbatch=1)
    message = refused(config, {path: value})
    assert message.startswith(f"{path}={value}; rule: at least 1; legal: {path}=")
    refuse.check(with_legal(config, message))


@pytest.mark.parametrize("axis", ["data", "inter", "tensor"])
def test_an_empty_grid(base: RunConfig, axis: str) -> None:
    message = refused(base, {f"grid.{axis}": 0})
    assert message.startswith(f"grid.{axis}=0; rule: at least 1; legal: grid.{axis}=1")


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [("warm_up", -1, 0), ("turns", 0, 1), ("batches", 0, 1), ("evaluate", -1, 0), ("deadline", 0, 120)],
)
def test_how_it_is_measured(base: RunConfig, name: str, value: int, legal: int) -> None:
    message = refused(base, {f"measure.{name}": value})
    assert f"measure.{name}={value}; rule: " in message
    assert message.endswith(f"legal: measure.{name}={legal}")
    refuse.check(base.changed({f"measure.{name}": legal}))


@pytest.mark.parametrize("value", ["abc", None, float("nan"), -0.5])
def test_a_deadline_that_is_no_time(base: RunConfig, value: object) -> None:
    message = refused(base, {"measure.deadline": value})
    assert f"measure.deadline={typed(value)}; rule: more than 0 seconds; legal: measure.deadline=120" in message
    refuse.check(altered(base, measure__deadline=0.5))


PATHS = ["grid.inter", "grid.data", "batch.size", "batch.microbatch", "launch.threads", "launch.max_ranks"]
PATHS += ["measure.turns", "measure.evaluate", "model.shape.layers", "model.shape.vocabulary"]


@pytest.mark.parametrize("value", ["x", 1.5, None, True, [1]], ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_a_count_that_is_no_whole_number(base: RunConfig, path: str, value: object) -> None:
    message = refused(base, {path: value})
    assert message.startswith(f"{path}={typed(value)}; rule: a whole number; legal: {path}=")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"launch.threads": 0}, "launch.threads=0; rule: at least 1; legal: launch.threads=1"),
        ({"model.shape.layers": 0}, "model.shape.layers=0; rule: at least 1"),
        ({"model.shape.heads": 3}, "heads=2"),
        ({"model.dtype": "float31"}, "did you mean 'float32'?"),
        ({"split": "evn"}, "did you mean 'even'?"),
        ({"comm.transport": "gloom"}, "did you mean 'gloo'?"),
        ({"comm.order": "fixed"}, "one of any, static"),
        ({"comm.transport": "nccl"}, "NCCL moves CUDA memory; legal: launch.device=cuda"),
        ({"launch.binding": "cores"}, "did you mean 'core'?"),
        ({"launch.binding": "core", "launch.starter": "torchrun"}, "legal: launch.binding=none"),
        ({"launch.starter": "torchru"}, "did you mean 'torchrun'?"),
        ({"launch.starter": "torchrun", "comm.transport": "mpi"}, "legal: launch.starter=mpiexec"),
        ({"weights.graph": "recomput"}, "did you mean 'recompute'?"),
    ],
)
def test_other_values(base: RunConfig, changes: dict[str, Any], says: str) -> None:
    assert says in refused(base, changes)


def test_a_refusal_is_a_run_of_the_experiment_and_stops_no_other() -> None:
    runs = expand(["experiment=smoke_grid", "batch.size=7"])
    assert [run.refusal is None for run in runs] == [False] * len(runs)
    mixed = expand(["experiment=smoke_grid", "batch.size=2"])
    assert [run.refusal is None for run in mixed] == [run.config.grid.data == 1 for run in mixed]
    assert {run.refusal is None for run in mixed} == {True, False}


def test_refusing_needs_no_torch() -> None:
    code = "import sys; from suite.bench.runs import expand; expand([]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["update.bucket=0"], "update.bucket=0; rule: at least 1; legal: update.bucket=16000000"),
        (["update.bucket=1.5"], "update.bucket=1.5; rule: a whole number"),
        (["update.bucket=null"], "update.bucket=null"),
        (["update.chunk=0"], "update.chunk=0; rule: at least 1, or null; legal: update.chunk=4"),
        (["update.chunk=-1"], "update.chunk=-1"),
        (["update.clip=0"], "update.clip=0; rule: above 0, or null"),
        (["update.clip=inf"], "update.clip=inf"),
        (["checkpoints=3"], "checkpoints=3 on stages of 4 layers; .*: 1, 2, 4, auto or null; legal: checkpoints=4"),
        (["checkpoints=4", "grid.inter=2"], "checkpoints=4 on stages of 2 layers"),
        (
            ["checkpoints=4", "grid.inter=2", "split=cost", "model.shape.layers=8", "model.shape.vocabulary=2000"],
            "checkpoints=4 on stages of 5, 3 layers; .*: 1 or null; legal: checkpoints=1",
        ),
        (["checkpoints=often"], "checkpoints=often"),
        (["checkpoints=auto", "grid.inter=3"], "4 layers on 3 stages; rule: stages divide layers"),
        (["precision.half=float8"], "no precision.half named 'float8'; rule: one of bfloat16, float16"),
        (["precision=bf16", "model.dtype=bfloat16"], "bfloat16 copies of bfloat16 weights"),
        (["precision=fp16", "precision.loss_scale.start=3"], "loss_scale.start=3; rule: a power of two"),
        (["precision=fp16", "precision.loss_scale.patience=0"], "loss_scale.patience=0"),
        (["memory.layout.sets=0"], "0 sets of buckets"),
        (["measure.validate=often"], "no measure.validate named 'often'; rule: one of end, turn"),
    ],
)
def test_settings_of_precision_updates_and_checkpoints(overrides: list[str], message: str) -> None:
    refusal = freeze(composed(overrides), "").refusal
    assert isinstance(refusal, Refused)
    assert re.search(message, str(refusal))


def test_settings_that_may_be() -> None:
    for overrides in (
        ["update.chunk=null", "update.clip=1", "checkpoints=2", "grid.inter=2"],
        ["precision=fp16", "memory=dense", "checkpoints=auto"],
        ["checkpoints=1", "grid.inter=3", "split=cost"],
        ["precision=bf16", "update.bucket=1", "memory.layout.sets=2", "model.dtype=float64"],
    ):
        refuse.check(resolve(overrides))


@pytest.mark.parametrize("system", ["pytorch", "deepspeed_3d", "torch_gpipe", "megatron_lm"])
def test_peers_prune_nothing(system: str) -> None:
    run = freeze(composed([f"system={system}", "memory=samo", "pruning=magnitude"]), "")
    assert isinstance(run.refusal, Unsupported)
    assert str(run.refusal) == (
        f"pruning=magnitude under system={system}; rule: systems on the suite's engine prune; legal: system=axonn_samo"
    )


@pytest.mark.parametrize("system", ["axonn", "gpipe", "one_f_one_b", "naive", "axonn_samo"])
def test_every_system_of_the_engine_prunes(system: str) -> None:
    more = ["batch.microbatch=16"] if system == "naive" else []
    config = resolve([f"system={system}", "memory=samo", "pruning=magnitude", *more])
    assert freeze(config.plain(), "").refusal is None


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["pruning.sparsity=1"], "pruning.sparsity=1; rule: a share from 0 to below 1; legal: pruning.sparsity=0.9"),
        (["pruning.sparsity=-0.1"], "pruning.sparsity=-0.1; rule: a share"),
        (["pruning.sparsity=many"], "pruning.sparsity=many; rule: a share"),
        (["pruning.sparsity=true"], "pruning.sparsity=true; rule: a share"),
        (["pruning.sparsity=0.9999"], "pruning.sparsity=0.9999 of a weight of 4096 entries; rule: something stays"),
        (["pruning.what=biases"], "no pruning.what named 'biases'"),
        (["memory=dense"], "pruning=magnitude with memory=dense; rule: compressed states are those of memory=samo"),
        (["memory=offload"], "pruning=magnitude with memory=offload; rule: compressed states"),
    ],
)
def test_tickets_that_cannot_be(overrides: list[str], says: str) -> None:
    run = freeze(composed(["system=axonn_samo", *overrides]), "")
    assert says in str(run.refusal)


def test_what_an_error_proposes_is_accepted() -> None:
    run = freeze(composed(["system=axonn_samo", "pruning.sparsity=0.9999"]), "")
    legal = str(run.refusal).rpartition("legal: ")[2]
    assert freeze(composed(["system=axonn_samo", legal]), "").refusal is None


@pytest.mark.parametrize("system", ["axonn_samo", "sputnik"])
def test_a_weight_that_a_32_bit_index_does_not_reach(system: str) -> None:
    """Before any rank begins to draw it."""
    huge = ["model.shape.hidden=32768", "model.shape.heads=1", "model.shape.layers=1"]
    run = freeze(composed([f"system={system}", *huge]), "")
    assert "of a weight of 4294967296 entries; rule: below 2^31" in str(run.refusal)


def test_shares_are_checked_on_modelled_machines_too() -> None:
    modelled = ["system=axonn_samo", "executor=simulated", "machine=summit", "model=gpt3_xl", "batch.size=64"]
    assert freeze(composed(modelled), "").refusal is None
    for wrong in ("pruning.sparsity=1", "pruning.sparsity=abc", "pruning.what=bogus"):
        assert wrong.partition("=")[2] in str(freeze(composed([*modelled, wrong]), "").refusal)
