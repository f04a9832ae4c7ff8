"""Public cells: loading, the adapter to setups, scores, fitted constants and null models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import pytest

from suite.core.errors import InvalidRequest, UnknownName
from suite.papers.public import adapter
from suite.papers.public.adapter import ToldSettings, assumed, node_bandwidth, plausible_setups, sharding_of, to_setup
from suite.papers.public.calibrate import (
    HIGHEST,
    LOWEST,
    FittedConstant,
    candidates,
    fit,
    median_cells,
    pair_of,
    share_of,
    shares,
    size,
    throughput,
    with_share,
)
from suite.papers.public.cells import CellMachine, PublicCell, load_cells
from suite.papers.public.layout_choices import median_loss, sweep_choices
from suite.papers.public.league import answers, constants, family_errors, make_league
from suite.papers.public.null_models import NULL_MODELS, null_errors
from suite.papers.public.score import CellAnswer, by_group, right_orders, score
from suite.papers.public.spread import constant_spreads, step_lines
from suite.papers.public.variants import CHOSEN, CONSTANTS, FLASH, OVERLAPS, ModelVariant, best_without
from suite.simulate.operations.generation import generations
from suite.simulate.operations.step import simulate_step
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


def test_gpus_are_the_product_of_the_axes() -> None:
    assert [c.id for c in CELLS if c.gpus != c.tp * c.pp * c.dp * c.cp and c.quality != "low"] == []


def test_a_row_without_a_field_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cells.yaml"
    file.write_text("- {id: a.b, group: a}\n")
    with refused(InvalidRequest, subject="cells.yaml: 0.source"):
        load_cells(file)
    with refused(InvalidRequest, subject="cannot be read"):
        load_cells(tmp_path / "none.yaml")
    file.write_text("a: [")
    with refused(InvalidRequest, subject="cannot be read"):
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
    "generation": "compiled|flash|fp4|fp8|fused|unfused",
}
CHUNKED = ("interleaved_1f1b", "interleaved_1f1b_variant", "v_half_vocabulary_spread")  # have chunks of their own
ALL_VALUES = [(field, value) for field, text in VALUES.items() for value in text.split("|")]


@pytest.mark.parametrize(("field", "value"), drawn(ALL_VALUES, n=10))
def test_every_value_of_the_files_has_a_setup(field: str, value: str) -> None:
    base = replace(BY_ID["bridge_h100.26.06_h100_405b_fp8"], machine=CellMachine("B200-180", 8), pp=4, vpp=2)
    cell = replace(base, **{field: value})  # type: ignore[arg-type]
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
            to_setup(replace(PLAIN, **{field: value}))  # type: ignore[arg-type]
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


def test_facts_that_a_source_leaves_out_follow_from_others() -> None:
    model = replace(PLAIN.model, kv_heads=None, ffn=None, ffn_gated=None)
    assert to_setup(replace(PLAIN, model=model)) == to_setup(PLAIN)
    assert to_setup(replace(PLAIN, machine=replace(PLAIN.machine, gpus_per_node=None))) == to_setup(PLAIN)
    old = replace(PLAIN, machine=CellMachine("V100-32", None), generation="flash", precision=None)
    assert to_setup(old).precision == "float16", "a V100 has no bfloat16"


def test_defaults_fill_only_what_a_source_does_not_tell() -> None:
    unknown = replace(PLAIN, precision=None, recompute=None)
    assert set(assumed(unknown)) - set(assumed(PLAIN)) == {"precision", "recompute"}
    assert to_setup(unknown) == to_setup(PLAIN), "the defaults of this generation"
    told = replace(PLAIN, recompute="none")
    assert to_setup(told).recompute == "none"
    assert to_setup(PLAIN, ToldSettings(fused_norm=False)).fused_norm is False


def test_plausible_values_change_unknown_settings_only() -> None:
    unknown = replace(PLAIN, recompute=None)
    names = {name.partition("=")[0] for name, _ in plausible_setups(unknown)}
    assert names <= set(assumed(unknown))
    assert "recompute" in names
    assert {s.recompute for n, s in plausible_setups(unknown) if n.startswith("recompute")} == {"none", "selective"}


# -- scores --------------------------------------------------------------------------------------------------------


def answered(cell: PublicCell, factor: float) -> CellAnswer:
    return CellAnswer(cell, (cell.tokens_per_second or 1.0) * factor, 1.0, True)


def test_an_unknown_value_costs_its_cell_only() -> None:
    """A scored cell that is refused counts as 100 %, and neither stops a fit nor a null model."""
    strange = replace(FEW[0], id="strange.one", group="strange", precision="fp3", machine=CellMachine("H900", 8))
    cells = [*FEW, strange]
    (answer_,) = answers([strange], shares(constants()))
    assert answer_.error == 1.0
    assert "H900" in answer_.refusal or "fp3" in answer_.refusal
    assert median_cells(cells) == median_cells(FEW)
    model = NULL_MODELS["one share of peak per device"]
    assert null_errors(cells, model) == null_errors(FEW, model)
    strange_group = next(group for group in make_league(cells).groups if group.group == "strange")
    assert (strange_group.mean, strange_group.null, strange_group.left_out) == (1.0, 1.0, 1.0)


def test_errors_are_averaged_over_groups() -> None:
    large = [answered(c, 1.1) for c in CELLS if c.group == "lumi_175b"]
    small = [answered(c, 0.7) for c in CELLS if c.group == "titan_h200"]
    total = score([*large, *small])
    assert total.mean == pytest.approx((0.1 + 0.3) / 2)
    assert [group.bias for group in total.groups] == pytest.approx([0.1, -0.3])
    one = small[0].cell.id
    assert score([*large, *small], frozenset([one])).groups[1].cells == 1


def test_low_quality_counts_for_order_only() -> None:
    low = [answered(replace(c, quality="low"), 1.0) for c in FEW if c.group == "lumi_175b"]
    high = [answered(c, 2.0) for c in CELLS if c.group == "titan_h200"]
    assert [group.group for group in score([*low, *high]).groups] == ["titan_h200"]
    right, pairs = right_orders(low)
    assert 0 < pairs == right


def test_a_wrong_order_is_counted() -> None:
    first, second = (replace(PLAIN, derived_tokens_per_second_per_gpu=v) for v in (100.0, 110.0))
    wrong = [CellAnswer(first, 120.0, 1.0, True), CellAnswer(second, 110.0, 1.0, True)]
    assert right_orders(wrong) == (0, 1)
    near = replace(second, derived_tokens_per_second_per_gpu=102.0)
    assert right_orders([wrong[0], CellAnswer(near, 1.0, 1.0, True)]) == (0, 0)


def test_the_confusion_of_memory_counts_both_outcomes() -> None:
    oom = replace(PLAIN, status="oom", derived_tokens_per_second_per_gpu=None)
    given = [replace(answered(PLAIN, 1.0), fits=False), answered(PLAIN, 1.0), CellAnswer(oom, 1.0, 1.0, False)]
    total = score([*given, CellAnswer(oom, 1.0, 1.0, True)])
    assert (total.found_fit, total.fit, total.found_oom, total.oom) == (1, 2, 1, 2)


# -- constants -----------------------------------------------------------------------------------------------------


def test_a_fit_gives_the_measured_throughput() -> None:
    cell = BY_ID["mpt_h100_large.30b_s2048_n128_b8"]
    share = fit(cell)
    assert throughput(cell, share) == pytest.approx(cell.tokens_per_second, rel=1e-3)


def test_ten_constants_each_on_the_cell_of_median_size() -> None:
    chosen = median_cells(CELLS)
    assert len(chosen) == 10
    for pair, cell in chosen.items():
        members = candidates(CELLS)[pair]
        assert pair_of(cell) == pair
        assert cell.scored
        below = sum(size(to_setup(other)) < size(to_setup(cell)) for other in members)
        above = sum(size(to_setup(other)) > size(to_setup(cell)) for other in members)
        assert max(below, above) <= len(members) / 2
    assert {(one.family, one.generation): one.cell for one in constants()} == {
        pair: cell.id for pair, cell in chosen.items()
    }
    pair = ("h100", "flash")
    assert fit(chosen[pair]) == pytest.approx(shares(constants())[pair], abs=2e-3)


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


def test_variants_change_every_named_constant() -> None:
    for name in (*CONSTANTS, *FLASH, *OVERLAPS):
        changed = [ModelVariant(name, 0.37).applied(g) != g for g in generations().values()]
        assert any(changed), name
    assert CHOSEN.of(to_setup(PLAIN)) == to_setup(PLAIN)
    with refused(UnknownName, "constant of a variant", "trafic"):
        ModelVariant("trafic", 1.0).applied(generations()["flash"])


def test_the_best_variant_is_chosen_by_the_other_groups() -> None:
    variants = [ModelVariant(groups={"a": 0.1, "b": 0.3}), ModelVariant("pause", 1.0, {"a": 0.4, "b": 0.1})]
    assert best_without(["b"], variants).constant == ""
    assert best_without(["a"], variants).constant == "pause"


def test_a_line_through_two_simulations_gives_the_fit() -> None:
    cells = [c for c in CELLS if c.group == "mpt_h100_large"]
    cell = BY_ID["mpt_h100_large.30b_s2048_n128_b8"]
    line = step_lines(cells)[cell.id]
    assert line.throughput(0.6) == pytest.approx(throughput(cell, 0.6), rel=0.02)
    assert line.share(cell.tokens_per_second or 0.0) == pytest.approx(fit(cell), rel=0.02)
    assert line.throughput(line.share(100.0)) == pytest.approx(100.0) or line.share(100.0) in (LOWEST, HIGHEST)


def test_the_spread_holds_every_other_choice() -> None:
    cells = [c for c in CELLS if c.group in ("titan_h200", "mlperf_405b_h200", "lumi_175b")]
    fitted = [FittedConstant(*pair, fit(cell), cell.id) for pair, cell in median_cells(cells).items()]
    spreads = {(s.family, s.generation): s for s in constant_spreads(cells, fitted)}
    assert {pair: s.cells for pair, s in spreads.items()} == {("h100", "fp8"): 2, ("mi200", "fused"): 5}
    for spread in spreads.values():
        assert LOWEST <= spread.low <= spread.high <= HIGHEST
        assert spread.best <= spread.worst


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


# -- choices of layouts --------------------------------------------------------------------------------------------


def test_the_first_choice_is_compared_with_the_measured_best() -> None:
    sweep = [c for c in CELLS if c.group == "hag_65b" and c.scored]
    perfect = sweep_choices([answered(c, 1.0) for c in sweep])
    assert [(choice.place, choice.lost, choice.cells) for choice in perfect] == [(1, 0.0, len(sweep))]
    best = max(sweep, key=lambda c: c.tokens_per_second or 0.0)
    worst = min(sweep, key=lambda c: c.tokens_per_second or 0.0)
    (wrong,) = sweep_choices([answered(c, 100.0 if c is worst else 1.0) for c in sweep])
    assert (wrong.first, wrong.best, wrong.place) == (worst.id, best.id, 2)
    assert wrong.lost == median_loss([wrong]) == 1 - (worst.tokens_per_second or 0.0) / (best.tokens_per_second or 1.0)
    (missing,) = sweep_choices([replace(answered(c, 1.0), fits=c is not best) for c in sweep])
    assert not missing.found
    assert missing.place == 0


# -- the committed answers -----------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_the_league_holds_its_score() -> None:
    found = answers(CELLS, shares(constants()))
    total = score(found, frozenset(one.cell for one in constants()))
    assert total.refused == ()
    assert total.mean < 0.10
    assert total.percentile < 0.16
    assert total.orders > 0.92
    assert total.found_oom >= 0.9 * total.oom
    assert total.found_fit >= 0.95 * total.fit
    assert len(by_group(found)) == 36


def test_megatrons_kernels_are_those_of_its_public_cells() -> None:
    """Efficiency `summit` takes the generation megatron, whose constants are from before the first comparison.

    Nothing is fitted to this group: products reach the median share.
    """
    share = median(shares(constants()).values())
    errors = []
    for cell in CELLS:
        if cell.group == "megatron_a100_recompute" and cell.scored and cell.tokens_per_second:
            setup = with_share(replace(to_setup(cell), generation=generations()["megatron"]), share)
            ours = simulate_step(replace(setup, attention="fused_softmax"))
            errors.append(abs(ours.tokens_per_second / cell.tokens_per_second - 1))
    assert len(errors) == 8
    assert fmean(errors) < 0.08
