"""Public cells: loading, the adapter to setups, scores, fitted constants and null models."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from suite.core.errors import InvalidRequest, UnknownName
from suite.schedule import ZBV, ControllableMemory, OneFOneB, Staircase
from suite.simulate.nearest import DIFFERENT, SetupFeatures, distance, schedule_kind
from suite.simulate.operations.products import share_of
from suite.simulate.operations.setup import TrainingSetup
from suite.simulate.operations.step import simulate_step
from suite.simulate.validation import adapter, calibrate
from suite.simulate.validation.accuracy import (
    NULL_MODELS,
    answers,
    constant_spreads,
    family_errors,
    null_errors,
    score,
    step_lines,
)
from suite.simulate.validation.adapter import (
    assumed,
    node_bandwidth,
    plausible_setups,
    sharding_of,
    to_setup,
)
from suite.simulate.validation.answers import CellAnswer, answer, answer_range, memory_error
from suite.simulate.validation.calibrate import constants
from suite.simulate.validation.cells import CellMachine, Measurement, PublicCell, load_cells
from suite.simulate.validation.nearest import nearest_answers, nearest_cells
from suite.simulate.validation.schedule_steps import (
    PrintedTimes,
    printed_rows,
    printed_times,
    scheduled_error,
    scheduled_step,
)
from suite.simulate.validation.tables import groups, orders, totals
from tests.support.drawn import drawn
from tests.support.refusals import refused

CELLS = load_cells()
BY_ID = {cell.id: cell for cell in CELLS}
PLAIN = BY_ID["megatron_a100_recompute.22b_full"]
PIPED = BY_ID["hag_13b.t2p2b1_nockpt_fa2rms"]
GPUS = (
    *("A100", "A100-40", "A100-80", "A800-80", "B200-180", "GB200", "GB300", "GH200-96", "H100-80", "H100-96"),
    *("H200-141", "MI250", "MI250X", "MI300X", "MI325X", "MI350X", "MI355X", "V100-16", "V100-32"),
)
FEW_GROUPS = ("titan_405b_2d", "titan_h200", "ibm_a100", "lumi_175b")
FEW = tuple(cell for name in FEW_GROUPS for cell in CELLS if cell.group == name)


# -- loading -------------------------------------------------------------------------------------------------------


def test_the_committed_file_has_all_cells_and_groups() -> None:
    assert len(CELLS) == len(BY_ID) == 739
    assert len({cell.group for cell in CELLS}) == 36
    assert sum(cell.status == "oom" for cell in CELLS) == 65
    for cell in CELLS:
        to_setup(cell)  # no cell is refused


def test_files_that_are_no_cells_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "cells.yaml"
    for text, words in ((None, "cannot be read"), ("a: [", "cannot be read"), ("- {id: a.b, group: a}", "a.b.source")):
        if text is not None:
            file.write_text(text)
        with pytest.raises(InvalidRequest) as refusal:
            load_cells(file)
        assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"derived_tokens_per_second_per_gpu": 0.0}, "derived_tokens_per_second_per_gpu=0.0"),
        ({"derived_tokens_per_second_per_gpu": math.nan}, "derived_tokens_per_second_per_gpu=nan"),
        ({"quality": "superb"}, "quality='superb'"),
        ({"status": "crashed"}, "status='crashed'"),
        ({"gpus": 7}, "gpus=7"),
        ({"machine": {"gpu": "H100-80", "gpus_per_node": 0}}, "gpus_per_node=0"),
        ({"model": {"name": "x", "layers": None}}, "model.layers=None"),
    ],
)
def test_an_impossible_cell_is_refused_with_its_id(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    file, (first, second) = tmp_path / "cells.yaml", [asdict(cell) for cell in FEW[:2]]
    file.write_text(yaml.safe_dump([first, second]))
    assert load_cells(file) == FEW[:2]
    file.write_text(yaml.safe_dump([first, {**second, **change}]))
    with pytest.raises(InvalidRequest) as refusal:
        load_cells(file)
    assert f"cells.yaml: {FEW[1].id}.{words};" in str(refusal.value)


def test_two_cells_of_one_id_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "cells.yaml"
    file.write_text(yaml.safe_dump([asdict(FEW[0]), asdict(FEW[0])]))
    with refused(InvalidRequest, subject=f"id={FEW[0].id}"):
        load_cells(file)


# -- adapter -------------------------------------------------------------------------------------------------------


VALUES = {  # every value of the files, by field
    "precision": "bf16|fp16|fp4|fp8|fp8-cs|mxfp8|nvfp4",
    "recompute": "full|none|selective|selective (by operator)|selective (every other layer)",
    "schedule": "1f1b|interleaved_1f1b|interleaved_1f1b_variant|v_half|v_half_vocabulary_spread|v_min|zb_1p|zb_2p"
    "|zb_2p_synchronised_step|zb_v",
    "sharding": "FSDP, kind not told|fsdp|hybrid zero3 (HSDP)|none|zero1|zero1_groups_of_4|zero1_groups_of_8|zero2"
    "|zero2 (FSDP gradients and optimizer)|zero2 (FSDP without resharding)|zero3|zero3 (FSDP full)",
    "attention": "flash|flash2|fused_softmax|not_flash|unfused",
    "layers_per_stage": "balanced_by_flops|even|first_and_last_one_less|uneven_not_told",
    "generation": "compiled|flash|fp4|fp8|fused|megatron|unfused",
}
CHUNKED = ("interleaved_1f1b", "interleaved_1f1b_variant", "v_half_vocabulary_spread")  # have chunks of their own
ALL_VALUES = [(field, value) for field, text in VALUES.items() for value in text.split("|")]


@pytest.mark.parametrize(("field", "value"), drawn(ALL_VALUES, n=10))
def test_every_value_of_the_files_has_a_setup(field: str, value: str) -> None:
    base = replace(BY_ID["bridge_h100.26.06_h100_405b_fp8"], machine=CellMachine("B200-180", 8), pp=4, vpp=2)
    cell = replace(base, **{field: value})
    if field == "schedule" and value not in CHUNKED:
        cell = replace(cell, vpp=1)
    assert simulate_step(to_setup(cell)).seconds > 0


def test_every_device_has_a_data_sheet() -> None:
    for gpu in GPUS:
        machine = adapter.modelled_machine(CellMachine(gpu, 8))
        assert gpu in machine.devices
        assert all((machine.family, machine.source, machine.compute_units)), gpu
        assert 0.5 < machine.sustained <= 1, gpu
        assert to_setup(replace(PLAIN, machine=CellMachine(gpu, 8))).machine == machine


def test_an_unknown_value_is_refused_with_the_nearest_one() -> None:
    for field, value, nearest in (
        ("precision", "bf61", "bf16"),
        ("recompute", "ful", "full"),
        ("attention", "flash3x", "flash3"),
        ("layers_per_stage", "evn", "even"),
        ("generation", "fussed", "fused"),
    ):
        with refused(UnknownName, field, value, legal=nearest):
            to_setup(replace(PLAIN, **{field: value}))
    with refused(UnknownName, "gpu", "H101-80", legal="H100-80"):
        to_setup(replace(PLAIN, machine=CellMachine("H101-80", 8)))
    with refused(UnknownName, "schedule", "1f2b", legal="1f1b"):
        to_setup(replace(PIPED, schedule="1f2b"))


BANDWIDTHS = {  # gigabytes per second of a node, by the words of a source
    "InfiniBand HDR, 8 adapters of 200 Gb/s per node for communication": 200,
    "8 ConnectX-7 InfiniBand NDR 400 Gb/s per node": 400,
    "RoCE 1600 Gb/s per node": 200,
    "RoCE v2, 500 GB/s per node": 500,
    "RoCE, 4 links of 100 Gb/s per node": 50,
    "Omni-Path, 4 links per node": 50,
    "Slingshot-11, 4 links of 200 Gb/s per node": 100,
    "400 Gb/s per node": 50,
}
SHARDINGS = {
    "none": ("none", 0, True),
    "zero1_groups_of_8": ("optimizer", 8, True),
    "zero2": ("gradients", 0, True),
    "zero2 (FSDP without resharding)": ("parameters", 0, False),
    "zero3 (FSDP full)": ("parameters", 0, True),
    "hybrid zero3 (HSDP)": ("parameters", 4, True),
    "FSDP, kind not told": ("parameters", 0, True),
}


def test_adapters_and_sharding_are_read_from_words() -> None:
    for text, gigabytes in BANDWIDTHS.items():
        assert node_bandwidth(text) == gigabytes * 1e9, text
    assert node_bandwidth("RoCE RDMA, bandwidth not told") is node_bandwidth(None) is None
    for text, devices in (("RDMA 400 Gb/s per GPU", 8), ("400 Gb/s per node", 1)):
        machine = adapter.modelled_machine(CellMachine("H100-80", 8, None, text))
        assert machine.between.bandwidth * machine.adapters == devices * 50e9
    for text, expected in SHARDINGS.items():
        assert sharding_of(text, per_node=4) == expected, text


def test_facts_that_a_source_leaves_out_follow_from_others_or_defaults() -> None:
    model = replace(PLAIN.model, kv_heads=None, ffn=None, ffn_gated=None)
    assert to_setup(replace(PLAIN, model=model)) == to_setup(PLAIN)
    assert to_setup(replace(PLAIN, machine=replace(PLAIN.machine, gpus_per_node=None))) == to_setup(PLAIN)
    old = replace(PLAIN, machine=CellMachine("V100-32", None), generation="flash", precision=None)
    assert to_setup(old).precision == "float16", "a V100 has no bfloat16"
    unknown = replace(PLAIN, precision=None, recompute=None)
    assert set(assumed(unknown)) - set(assumed(PLAIN)) == {"precision", "recompute"}
    assert to_setup(unknown) == to_setup(PLAIN), "the defaults of this generation"
    assert to_setup(replace(PLAIN, recompute="none")).recompute == "none"
    assert to_setup(PLAIN, fused_norm=False).fused_norm is False
    plausible = plausible_setups(replace(PLAIN, recompute=None))
    assert {s.recompute for name, s in plausible if name.startswith("recompute")} == {"none", "selective"}


# -- scores --------------------------------------------------------------------------------------------------------


def test_an_unknown_value_costs_its_cell_only() -> None:
    """A scored cell that is refused counts as 100 %, and neither stops a fit nor a null model."""
    strange = replace(FEW[0], id="strange.one", group="strange", precision="fp3", machine=CellMachine("H900", 8))
    cells = [*FEW, strange]
    (answer_,) = answers([strange], calibrate.shares(constants()))
    assert answer_.error == 1.0
    assert "H900" in answer_.refusal or "fp3" in answer_.refusal
    assert calibrate.median_cells(cells) == calibrate.median_cells(FEW)
    model = NULL_MODELS["one share of peak per device"]
    assert null_errors(cells, model) == null_errors(FEW, model)
    found = groups(score(cells, varied=False).steps).loc["strange"]
    assert found[["mean error", "null model", "without its family"]].tolist() == [1.0] * 3


# -- constants -----------------------------------------------------------------------------------------------------


def test_ten_constants_each_on_the_cell_of_median_size() -> None:
    chosen = calibrate.median_cells(CELLS)
    assert len(chosen) == 10
    for pair, cell in chosen.items():
        members = calibrate.candidates(CELLS)[pair]
        assert calibrate.pair_of(cell) == pair
        assert cell.scored
        below = sum(calibrate.size(to_setup(other)) < calibrate.size(to_setup(cell)) for other in members)
        above = sum(calibrate.size(to_setup(other)) > calibrate.size(to_setup(cell)) for other in members)
        assert max(below, above) <= len(members) / 2
    assert {(one.family, one.generation): one.cell for one in constants()} == {
        pair: cell.id for pair, cell in chosen.items()
    }
    pair = ("h100", "flash")
    assert calibrate.fit(chosen[pair]) == pytest.approx(calibrate.shares(constants())[pair], abs=2e-3)


def test_a_pair_without_a_constant_takes_the_median() -> None:
    fitted = {("a", "x"): 0.2, ("b", "x"): 0.5, ("c", "y"): 0.6}
    assert share_of(("b", "x"), fitted) == 0.5
    assert share_of(("c", "x"), fitted) == 0.5
    assert share_of(("d", "z"), fitted | {("e", "z"): 0.9, ("f", "z"): 0.9}) == 0.6


def test_leaving_a_family_out_ignores_its_cells() -> None:
    family = "torchtitan"
    wrong = [replace(c, derived_tokens_per_second_per_gpu=1.0) if c.family == family and c.scored else c for c in FEW]
    others = [c for c in wrong if c.family != family]
    errors = family_errors(wrong)
    assert {c.id for c in wrong if c.scored} == errors.keys()
    ours = [c for c in FEW if c.family == family and c.scored]
    right = family_errors([*ours, *others])
    for cell in ours:  # the answer does not depend on what the family measured
        assert (errors[cell.id] + 1) == pytest.approx((right[cell.id] + 1) * (cell.tokens_per_second or 0.0))


def test_a_line_through_two_simulations_gives_the_fit() -> None:
    cell = BY_ID["mpt_h100_large.30b_s2048_n128_b8"]
    line = step_lines([cell])[cell.id]
    assert line.throughput(0.6) == pytest.approx(calibrate.throughput(cell, 0.6), rel=0.02)
    assert line.share(cell.tokens_per_second or 0.0) == pytest.approx(calibrate.fit(cell), rel=0.02)


def test_the_spread_holds_every_other_choice() -> None:
    cells = [c for c in CELLS if c.group in ("titan_h200", "mlperf_405b_h200", "lumi_175b")]
    found = constant_spreads(cells).set_index(["family", "generation"]).dropna()
    assert set(found.index) == {("h100", "fp8"), ("mi200", "fused")} & set(found.index)
    assert (found["low"] >= calibrate.LOWEST).all()
    assert (found["low"] <= found["high"]).all()
    assert (found["high"] <= calibrate.HIGHEST).all()
    assert (found["best"] <= found["worst"]).all()
    assert len(found)


# -- null models ---------------------------------------------------------------------------------------------------


def test_a_null_model_leaves_the_group_out() -> None:
    model = NULL_MODELS["one share of peak per device"]
    errors = null_errors(FEW, model)
    assert errors.keys() == {c.id for c in FEW if c.scored}
    doubled = [
        replace(c, derived_tokens_per_second_per_gpu=2 * (c.tokens_per_second or 0.0)) if c.group == "titan_h200" else c
        for c in FEW
    ]
    for cell in FEW:
        if cell.group == "titan_h200":  # its own measurements do not move its forecast
            assert null_errors(doubled, model)[cell.id] + 1 == pytest.approx((errors[cell.id] + 1) / 2)


def test_the_bubble_lowers_the_second_null_model() -> None:
    one, bubble = NULL_MODELS.values()
    setup = to_setup(PIPED)
    m, p = setup.microbatches, setup.pipeline
    assert bubble(setup) == pytest.approx(one(setup) * m / (m + p - 1))


# -- the committed answers -----------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_the_simulator_keeps_its_accuracy() -> None:
    steps = score(CELLS, varied=False).steps
    total = totals(steps).iloc[0]
    assert (steps["refusal"] == "").all()
    assert total["mean error"] < 0.065
    assert total["90th percentile"] < 0.13
    assert total["right orders"] > 0.92
    assert orders(steps)[1] == 9139
    assert [total[name] for name in ("predicted not to fit", "predicted to fit")] == ["59 of 65", "648 of 674"]
    assert len(groups(steps)) == 36


# -- errors of predicted memory on public cells


def printed(size: float | None, unit: str | None = "GB", status: str = "ok") -> PublicCell:
    return replace(PLAIN, group="a", status=status, measured=Measurement(1.0, size, unit))


def test_units_of_printed_memory() -> None:
    for unit, one in (("GB", 1e9), ("GiB", 2.0**30), ("MB", 1e6), ("MiB", 2.0**20)):
        assert printed(40.0, unit).measured.peak_bytes == 40.0 * one
        assert printed(None, unit).measured.peak_bytes is None
    with refused(UnknownName, "memory_unit", "gb", legal="GB"):
        memory_error(CellAnswer(printed(40.0, "gb"), 1.0, 40e9, True))


def test_error_is_simulated_over_measured_bytes() -> None:
    assert memory_error(CellAnswer(printed(40.0), 1.0, 44e9, True)) == pytest.approx(0.1)
    assert memory_error(CellAnswer(printed(None), 1.0, 44e9, True)) is None
    assert memory_error(CellAnswer(printed(40.0), refusal="no")) is None
    assert memory_error(CellAnswer(printed(40.0, status="oom"), 1.0, 44e9, True)) is None


# -- nearest public cells of a training setup: family first, then size, devices and settings

ONE = BY_ID["titan_h100_fsdp.8b_n128_compile"]


def test_schedules_have_kinds() -> None:
    kinds = [
        (None, "none"),
        (OneFOneB(), "plain"),
        (Staircase(2, lead=2), "interleaved"),
        (Staircase(lead=1, split=True), "split"),
        (ZBV(), "V"),
        (ControllableMemory("half"), "V"),
    ]
    assert [schedule_kind(schedule) for schedule, _ in kinds] == [kind for _, kind in kinds]


def between(first: TrainingSetup, second: TrainingSetup) -> float:
    return distance(SetupFeatures.of(first), SetupFeatures.of(second))


def test_distance_is_zero_of_itself_and_counts_sizes_and_settings() -> None:
    setup = to_setup(ONE)
    assert between(setup, setup) == 0
    twice = replace(setup, data=2 * setup.data)
    assert between(setup, twice) == between(twice, setup) == pytest.approx(0.693, abs=1e-3)
    other = replace(twice, sharding="none", machine=replace(setup.machine, family="a100"))
    assert between(setup, other) == pytest.approx(0.693 + 2 * DIFFERENT, abs=1e-3)
    assert between(setup, replace(setup, generation=replace(setup.generation, name="fp8"))) == DIFFERENT
    pipeline = replace(setup, schedule=OneFOneB(), pipeline=2, data=setup.data // 2)
    assert between(setup, pipeline) == DIFFERENT


def test_a_cell_is_nearest_to_itself_unless_left_out() -> None:
    assert nearest_cells(to_setup(ONE), CELLS, count=1) == (ONE,)
    near = nearest_cells(to_setup(ONE), CELLS, [ONE.id])
    assert len(near) == 5
    assert ONE not in near
    distances = [between(to_setup(ONE), to_setup(cell)) for cell in near]
    assert distances == sorted(distances)


def test_cells_of_the_family_precede_nearer_ones() -> None:
    near, far = BY_ID["megatron_a100_weak.gpt_1.7b"], BY_ID["megatron_a100_weak.gpt_1t"]
    setup = to_setup(near)
    foreign = replace(near, machine=replace(near.machine, gpu="V100-32"), precision="fp16")
    assert between(setup, to_setup(foreign)) < between(setup, to_setup(far))
    assert nearest_cells(setup, [foreign, far], count=2) == (far, foreign)


def test_only_scored_cells_without_a_refusal_are_chosen() -> None:
    changed = [replace(ONE, quality="low"), replace(ONE, status="oom"), replace(ONE, schedule="unheard", pp=2, dp=64)]
    assert not nearest_cells(to_setup(ONE), changed)


def test_answers_use_the_constant_of_each_cell() -> None:
    pair = ("h100", "compiled")
    slow, fast = (nearest_answers(to_setup(ONE), [ONE], {pair: share})[0] for share in (0.4, 0.8))
    assert slow.cell == ONE
    assert slow.error < fast.error


# -- ranges of answers on public cells over plausible values of unknown settings

UNKNOWN = replace(PLAIN, recompute=None, fused_norm=True, attention="fused_softmax", sequence_parallel=False)
SHARES = {("a100", "fused"): 0.6}


def test_range_holds_the_point_answer_and_every_changed_answer() -> None:
    point = answer(UNKNOWN, SHARES)
    found = answer_range(point, SHARES)
    others = [answer(replace(UNKNOWN, recompute=kind), SHARES).tokens_per_second for kind in ("none", "selective")]
    values = [point.tokens_per_second, *others]
    assert found == (min(values, key=lambda v: v or 0.0), max(values, key=lambda v: v or 0.0))
    assert found[0] == point.tokens_per_second, "full recomputation is the slowest"
    assert found[0] < found[1]


def test_setting_that_changes_no_setup_gives_no_range() -> None:
    alone = replace(UNKNOWN, recompute="full", sequence_parallel=None, tp=1, dp=8)
    assert to_setup(alone, sequence_parallel=True) == to_setup(alone)
    assert [name for name, _ in plausible_setups(alone)] == ["sequence_parallel=True"]
    assert answer_range(answer(alone, SHARES), SHARES) is None


def test_told_unmeasured_and_refused_cells_have_no_range() -> None:
    for changed in ({"recompute": "full"}, {"derived_tokens_per_second_per_gpu": None}, {"precision": "int3"}):
        answered = answer(replace(UNKNOWN, **changed), SHARES)
        assert answer_range(answered, SHARES) is None, changed


# -- steps of public cells from printed pass times, without the cost model

PRINTED = [cell for cell in CELLS if printed_times(cell)]
FIRST = next(cell for cell in PRINTED if cell.id == "zb_few_microbatches.1.5b_m2_1f1b")
EVEN = PrintedTimes("1.5b", 8, 6, 24, 3, 1000.0, 1000.0, 1000.0, 0.0)


def test_every_cell_of_the_zero_bubble_paper_has_printed_times() -> None:
    assert {cell.group for cell in PRINTED} == {"zb_schedules", "zb_sync", "zb_few_microbatches"}
    assert [cell.id for cell in CELLS if cell.group.startswith("zb_") and cell not in PRINTED] == []
    for cell in PRINTED:
        times = printed_times(cell)
        assert times.stages == cell.pp
        assert cell.schedule != "interleaved_1f1b" or times.chunks == cell.vpp
    few, many = (next(c for c in PRINTED if c.id == name) for name in (FIRST.id, "zb_schedules.1.5b_m64_zb_1p"))
    assert [row.microbatches for cell in (few, many) if (row := printed_times(cell))] == [24, 64]
    assert len(printed_rows()) == 12


def test_step_at_equal_times_follows_closed_forms() -> None:
    """1F1B idles for 3 (p - 1) passes and ZB-H1 for p - 1 of 3 m + 3 (p - 1) and 3 m + p - 1 (arXiv 2401.10241).

    ZB-2p has no bubble between overlapping steps, unless stages update together; chunks share the printed times.
    """

    def step(name: str, microbatches: int = 24, **changes: int) -> float:
        return scheduled_step(replace(FIRST, schedule=name, global_batch=6 * microbatches, **changes), EVEN)

    for name, microbatches, seconds in (
        ("1f1b", 8, 45.0),
        ("1f1b", 24, 93.0),
        ("zb_1p", 24, 79.0),
        ("zb_2p", 24, 72.0),
    ):
        assert step(name, microbatches) == pytest.approx(seconds), name
    assert step("zb_2p_synchronised_step") > 72.0
    assert 72.0 < step("interleaved_1f1b", vpp=3) < step("1f1b", vpp=1)


def test_error_compares_throughput() -> None:
    times = printed_times(FIRST)
    exact = (FIRST.global_batch or 0) * FIRST.seq / FIRST.gpus / scheduled_step(FIRST, times)
    cell = replace(FIRST, derived_tokens_per_second_per_gpu=exact / 1.25)
    assert scheduled_error(cell) == pytest.approx(0.25)


def test_cells_without_printed_times_have_no_error() -> None:
    others = ({"source": "arXiv 2411.05288"}, {"pp": 4}, {"microbatch": None}, {"microbatch": 1}, {"quality": "low"})
    for changed in others:
        assert scheduled_error(replace(FIRST, **changed)) is None
