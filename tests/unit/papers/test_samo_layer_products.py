"""SAMO's Figure 1: right products by every implementation, honest times, and a record that says what they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from baselines.sputnik import UNTRIED, layer_timing
from baselines.sputnik.layer_timing import (
    Calls,
    CallTimer,
    Layer,
    LayerTiming,
    check,
    implementations_of,
    layer_of,
)
from suite import accelerator
from suite.claims import load
from suite.comm.p2p.threads import Hub, LoopbackWorld
from suite.config.compose import resolve
from suite.config.places import check_parts
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, RankError, UnknownName
from suite.core.record import Source
from suite.papers.samo.layer_products import ALONE, CSR, DENSE, PRODUCTS, SPUTNIK, Products, study_result
from suite.runner.runs import expand
from tests.support.configs import altered
from tests.support.drawn import drawn
from tests.support.refusals import fault, refused

SMALL = {"batch": 12, "sparsity": 0.75, "dtype": "float32", "seed": 3}


def layer(dtype: torch.dtype = torch.float32, width: int = 16) -> Layer:
    return layer_of(width, device="cpu", **{**SMALL, "dtype": dtype})


# -- products --------------------------------------------------------------------------------------------------------


def test_layer_keeps_its_share_and_follows_its_seed() -> None:
    first, again = layer(), layer()
    assert int((first.weight != 0).sum()) == first.index.numel() == 64
    assert torch.equal(first.weight, again.weight)
    assert torch.equal(first.x, again.x)
    assert first.x.shape == first.grad.shape == (12, 16)
    assert not torch.equal(first.x, first.grad)


@pytest.mark.parametrize("dtype", drawn(layer_timing.ALLOWED, n=2))
def test_every_implementation_gives_the_same_products(dtype: torch.dtype) -> None:
    linear = layer(dtype)
    usable, reasons = implementations_of(linear)
    assert [*usable] == [DENSE, CSR, SPUTNIK, ALONE]
    right = linear.right()
    assert not torch.equal(right["forward"], right["input gradient"])
    for name, calls in usable.items():
        assert tuple(calls) == PRODUCTS
        for product, call in calls.items():
            check(name, product, linear, call(), right[product])
    short = dtype.itemsize == 2
    name = str(dtype).removeprefix("torch.")
    assert (f"torch CSR: the sampled product in float32, which {name} has no kernel for" in reasons) == short


def test_wrong_and_failed_products_are_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = layer()
    right = linear.right()["forward"]
    check("ours", "forward", linear, right.float(), right)
    for wrong in ((right * 0.0).float(), (right * float("nan")).float(), (right * 1.1).float(), right.float()[1:]):
        with pytest.raises(RankError, match="ours: the forward at 16 x 16 is off by"):
            check("ours", "forward", linear, wrong, right)

    def broken(name: str, call: Callable[[Layer], torch.Tensor], width: int = 16) -> Any:
        """Implementations of which the forward of one, at one width, is another call."""

        def changed(timed: Layer) -> tuple[Calls, list[str]]:
            usable, reasons = implementations_of(timed)
            if len(timed.weight) == width:
                usable = {**usable, name: {**usable[name], "forward": lambda: call(timed)}}
            return usable, reasons

        return changed

    def fails(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("no resources\nat all")

    monkeypatch.setattr(layer_timing, "implementations_of", broken(ALONE, lambda timed: timed.x + 1))
    with pytest.raises(RankError, match="Sputnik-style kernels alone: the forward at 16 x 16"):
        LayerTiming(widths=[16], device="cpu", **SMALL).sweep(1)
    monkeypatch.setattr(layer_timing, "implementations_of", broken(CSR, fails, width=32))
    study = LayerTiming(widths=[16, 32], device="cpu", **SMALL)
    assert list(study.sweep(1)) == [DENSE, SPUTNIK, ALONE]
    assert study.notes[-1] == "torch CSR, 32 x 32: no resources"
    monkeypatch.setattr(layer_timing, "implementations_of", implementations_of)
    monkeypatch.setattr(layer_timing.cpu, "sddmm", fails)  # our own implementation has no excuse
    with pytest.raises(RuntimeError, match="no resources"):
        LayerTiming(widths=[16], device="cpu", **SMALL).sweep(1)


# -- time ------------------------------------------------------------------------------------------------------------


def test_each_call_is_timed_after_a_flush_of_the_cache() -> None:
    log: list[str] = []

    def work(name: str) -> Callable[[], torch.Tensor]:
        return lambda: (log.append(name), torch.empty(0))[1]

    clock = accelerator.Clock(torch.device("cpu"))
    clock.mark = lambda: (log.append("mark"), 100.0 * log.count("flush") + 4.0 * log.count("call"))[1]
    timer = CallTimer("cuda:0", clock, work("flush"))
    assert timer.seconds(work("call"), 3) == pytest.approx(4.0)
    assert log == ["call", *["flush", "mark", "call", "mark"] * 3]
    log.clear()
    assert timer.seconds(work("call"), 1) == 4.0
    assert log == ["flush", "mark", "call", "mark"]


def test_implementations_take_turns_and_are_repeated_alike() -> None:
    class Told(CallTimer):
        def __init__(self) -> None:
            super().__init__("cpu")
            self.times: list[int] = []

        def seconds(self, call: Any, times: int) -> float:
            self.times.append(times)
            return layer_timing.LONG / 5 if len(self.times) == 4 else 1.0  # the second way's forward, as it is tried

    clock = Told()
    study = LayerTiming(widths=[16, 32], device="cpu", clock=clock, **SMALL)
    first = study.sweep(2)
    assert {name: {p: [len(s) for s in shapes] for p, shapes in way.items()} for name, way in first.items()} == {
        name: {product: [2, 2] for product in PRODUCTS} for name in (DENSE, CSR, SPUTNIK, ALONE)
    }
    tried, timed = clock.times[:24], clock.times[24:48]
    assert set(tried) == {1}
    assert sorted(timed) == [1] * 16 + [5] * 8
    study.sweep(1)
    assert len(clock.times) == 24 + 48 + 24, "a layer is made and checked once"


@cache
def study() -> RunConfig:
    return resolve(["experiment=samo_fig1"])


# -- the record ------------------------------------------------------------------------------------------------------


def sweep(widths: int, **seconds: float) -> Any:
    """Of every way the seconds of its forward; gradients take twice and three times as long."""
    names = {"dense": DENSE, "csr": CSR, "ours": SPUTNIK, "alone": ALONE}
    return {
        names[name]: {
            product: [[factor * s * (at + 1)] * 2 for at in range(widths)]
            for product, factor in zip(PRODUCTS, (1.0, 2.0, 3.0), strict=True)
        }
        for name, s in seconds.items()
    }


def plan_of(config: RunConfig) -> Products:
    """The study that a config describes. Raises InvalidRequest."""
    check_parts(config)
    executor = config.executor.build()
    return executor


def carried(widths: list[int], *, cuda: bool, changes: Mapping[str, Any] | None = None, **seconds: float) -> Any:
    plan = replace(plan_of(study()), widths=tuple(widths), **(changes or {}))
    turns = [sweep(len(widths), **seconds)] * 3
    return study_result(plan, {"cuda": cuda, "notes": ["a remark"]}, turns)


def test_record_holds_raw_samples_and_ratio_panels() -> None:
    executed = carried([128, 256], cuda=False, dense=0.5, csr=2.0, ours=4.0, alone=3.0)
    assert executed.source is Source.MEASURED
    assert executed.metrics["forward, dense, 256"].values == (1.0,) * 6
    assert executed.metrics["weight gradient, Sputnik-style, 128"].values == (12.0,) * 6
    dense, sparse = (
        sum(executed.metrics[f"{product}, {name}, 256"].values[0] for product in PRODUCTS)
        for name in ("dense", "torch CSR")
    )
    assert executed.metrics["csr_over_dense"].values == (sparse / dense,)
    assert len(executed.metrics) == 3 * 4 * 2 + 2
    panels = {panel.title.removeprefix("A fully connected layer: "): panel for panel in executed.panels}
    assert panels["forward and both backward products"].ours["dense"] == [3.0, 6.0]
    ratios = panels["time over that of the dense products"]
    assert (ratios.ours["Sputnik-style"], ratios.ours["torch CSR"]) == ([8.0, 8.0], [4.0, 4.0])
    ends = {"Sputnik on V100, least printed": [6.0, 6.0], "Sputnik on V100, most printed": [22.0, 22.0]}
    assert ratios.paper == ends
    assert panels["input gradient"].ours["torch CSR"] == [4.0, 8.0]
    assert any("no claim is answered" in note for note in executed.notes)
    assert "a remark" in executed.notes


def test_claims_are_answered_on_cuda_in_the_papers_setting_alone() -> None:
    widths = [128, 256, 512, 1024, 2048, 4096]
    times = {"dense": 0.5, "csr": 2.0, "ours": 4.0, "alone": 3.0}
    half = {"dtype": "float16"}
    metrics = carried(widths, cuda=True, changes=half, **times).metrics
    ratio, order = metrics["samo.fig1.dense_over_sputnik"], metrics["samo.fig1.order"]
    assert ratio.values == (8.0,) * 6
    assert order.values == tuple(value for at in range(1, 7) for value in (3.0 * at, 24.0 * at))
    claims = {claim.id: claim for claim in load.claims()}
    assert ratio.unit == claims["samo.fig1.dense_over_sputnik"].unit
    assert order.unit == claims["samo.fig1.order"].unit
    assert tuple(map(str, widths)) == claims["samo.fig1.dense_over_sputnik"].terms
    others: list[tuple[list[int], bool, dict[str, Any]]] = [
        (widths, False, half),
        (widths[:5], True, half),
        (widths, True, {}),
        (widths, True, {**half, "batch": 64}),
        (widths, True, {**half, "sparsity": 0.8}),
    ]
    for some, cuda, changes in others:
        answered = carried(some, cuda=cuda, changes=changes, **times).metrics
        assert not any(name.startswith("samo.") for name in answered)


def test_a_rank_leaves_what_it_swept() -> None:
    config = altered(study(), executor__widths=[16, 32], executor__batch=8)
    rank = plan_of(config).on_rank(LoopbackWorld(Hub(1), 0), config)
    for _ in range(2):
        rank.train_batch(())
    samples = rank.samples()
    assert rank.samples()["sweeps"] == []
    assert not samples["cuda"]
    assert UNTRIED in samples["notes"]
    summary = plan_of(config).summarize(config, samples, [(swept,) for swept in samples["sweeps"]])
    samples_of = {name: metric.values for name, metric in summary.metrics.items() if ", " in name}
    assert all(len(values) == 4 and min(values) > 0 for values in samples_of.values())
    rank.close()


REFUSED: tuple[tuple[str, Any, dict[str, object]], ...] = (
    ("widths", [], fault("executor.widths", "[]")),
    ("widths", [256, 128], fault("executor.widths", rule="rising", legal="executor.widths=[128,256]")),
    ("widths", [128, 128], fault("executor.widths", rule="rising")),
    ("widths", [0, 128], fault("executor.widths", rule="above 0")),
    ("widths", "many", fault("executor.widths", "many")),
    ("batch", 0, fault("executor.batch", 0)),
    ("rounds", 1.5, fault("executor.rounds", 1.5)),
    ("dtype", "float8", fault("executor.dtype", "float8")),
    ("sparsity", 1.0, fault("executor.sparsity", "1.0")),
    ("sparsity", -0.1, fault("executor.sparsity", "-0.1")),
    ("sparsity", 0.99999, fault("executor.sparsity", rule="leaves at least one of 16384 entries")),
)


def test_a_study_that_cannot_be_made_is_refused() -> None:
    plan_of(study()).check(study())
    for name, value, expected in REFUSED:
        config = altered(study(), **{f"executor__{name}": value})
        with refused(UnknownName if name == "dtype" else InvalidRequest, **expected):
            plan_of(config).check(config)
    config = altered(study(), grid__data=2)
    with refused(InvalidRequest, subject="2 ranks under executor=products", rule="one rank times a layer"):
        plan_of(config).check(config)


def test_experiment_run_takes_overrides_of_scale_and_command_line() -> None:
    six = "executor.widths=[128,256,512,1024,2048,4096]"
    [run] = expand(["experiment=samo_fig1", "launch.device=cuda", "executor.dtype=float16", six])
    assert run.refusal is None
    assert plan_of(run.config).widths == [128, 256, 512, 1024, 2048, 4096]
