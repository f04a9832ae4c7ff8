"""Command `suite plan`: its table, its defaults, and refusals that name a legal value."""

from __future__ import annotations

import re

import pytest

from suite.cli import plan
from suite.cli.main import main
from suite.config.typed_yaml import read_typed
from suite.core.exit_codes import Exit
from suite.core.resources import conf_folder
from suite.papers.public.calibrate import FittedConstant, share_of, shares
from suite.papers.public.league import constants
from suite.simulate.operations.layouts import layouts, ranked
from suite.simulate.operations.setup import TrainingSetup
from suite.workload import flops

LINE = "model=llama3_8b machine=h100 devices=8 batch=16 top=3"
ROW = re.compile(
    r"^ *(\d+)  (\d+) x (\d+) x (\d+) +(\w+) +(\w+) +(\d+) +(\d+) +(\w+) +([\d.]+) +([\d,]+) +([\d.]+) +([\d.]+)$"
)


def setup_of(line: str) -> tuple[TrainingSetup, int]:
    """Setup of one device for a command line, and the number of devices."""
    return plan.setup_of(plan.COMMAND.read(line.split()), shares(constants()))


def output(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["plan", *line.split()]) == Exit.OK
    printed = capsys.readouterr()
    assert not printed.err
    return printed.out


def test_plans_are_printed_fastest_first(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(LINE, capsys).splitlines()
    assert (
        lines[0] == "model=llama3_8b on 8 devices of h100, compiled: batches of 16 sequences of 8192 tokens, bfloat16"
    )
    tried, fit = map(int, re.match(r"(\d+) layouts tried; (\d+) fit the 84\.9 GB of a device", lines[1]).groups())  # type: ignore[union-attr]
    assert 100 < fit < tried
    rows = [match.groups() for line in lines if (match := ROW.match(line))]
    assert [int(row[0]) for row in rows] == [1, 2, 3]
    seconds = [float(row[9]) for row in rows]
    assert seconds == sorted(seconds)
    for row in rows:
        assert int(row[1]) * int(row[2]) * int(row[3]) == 8
        assert float(row[10].replace(",", "")) == pytest.approx(16 * 8192 / float(row[9]) / 8, rel=1e-3)
        assert float(row[12]) <= 84.9
    assert max(map(len, lines)) <= 120


def test_memory_by_kind_adds_up_to_the_total(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(LINE, capsys).splitlines()
    totals = [float(match[13]) for line in lines if (match := ROW.match(line))]
    by_kind = [line for line in lines if line.startswith("    GB per device: ")]
    assert len(by_kind) == len(totals) == 3
    for line, total in zip(by_kind, totals, strict=True):
        assert {*re.findall(r"[a-z]+(?: states)?(?= \d)", line)} == {
            *("weights", "gradients", "optimizer states", "activations", "logits", "context")
        }
        assert sum(map(float, re.findall(r"\d+\.\d", line))) == pytest.approx(total, abs=0.31)  # rounded numbers


def test_percent_of_peak_is_the_named_formula(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(LINE, capsys)
    row = next(match for line in text.splitlines() if (match := ROW.match(line)))
    per_token = 6 * 8_030_261_248 + 12 * 32 * 4096 * 8192
    assert float(row[12]) == pytest.approx(100 * float(row[11].replace(",", "")) * per_token / 989.4e12, abs=0.06)
    assert "Percent of peak: 6 N + 12 l h s flops per token (N = 8.03e9 with all embeddings, attention in full)" in text
    assert "over the dense bfloat16 peak of 989 Tflop/s per device" in text


def test_flops_per_token_of_the_formula() -> None:
    base, _ = setup_of(LINE)
    assert flops.per_trained_token(base.model) == 6 * 8_030_261_248 + 12 * 32 * 4096 * 8192


def test_errors_of_the_nearest_cells_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(LINE, capsys).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("Mean absolute error"))
    mean = float(re.search(r"([\d.]+) %$", lines[at])[1])  # type: ignore[index]
    errors = [float(re.match(r" +([+-][\d.]+) %  \S+, \d+ \S+, \w+$", line)[1]) for line in lines[at + 1 :]]  # type: ignore[index]
    assert len(errors) == 5
    assert mean == pytest.approx(sum(map(abs, errors)) / 5, abs=0.11)
    assert not {one.cell for one in constants()} & {line.split("  ")[-1].partition(",")[0] for line in lines[at:]}


def test_share_of_peak_is_fitted_or_the_median() -> None:
    base, _ = setup_of(LINE)
    fitted = [FittedConstant("h100", "compiled", 0.5, "a.cell"), FittedConstant("a100", "flash", 0.75, "b.cell")]
    fitted.append(FittedConstant("a100", "fused", 0.6, "c.cell"))
    own, _ = plan.setup_of(plan.COMMAND.read(LINE.split()), shares(fitted))
    assert own.generation.share("h100") == 0.5
    assert own.machine.sustained == pytest.approx(0.803)
    assert plan.share_lines(own, fitted) == (
        "Large products reach 40 % of the peak on h100 with compiled, 50 % of the best published product.",
        "Source of this rate: fitted to the cell a.cell.",
    )
    other, _ = plan.setup_of(plan.COMMAND.read([*LINE.split(), "generation=fp8"]), shares(fitted))
    assert other.generation.share("h100") == 0.6
    share, source = plan.share_lines(other, fitted)
    assert "with fp8, 60 % of the best published product" in share
    assert source.startswith("Source of this rate: the median of the constants that")
    assert base.generation.share("h100") == share_of(("h100", "compiled"), shares(constants()))


@pytest.mark.parametrize(
    ("sequence", "devices", "batch"),
    [(8192, 64, 512), (4096, 64, 1024), (2048, 8, 2048), (8192, 600, 600), (10**8, 1, 1), (131072, 16, 32)],
)
def test_default_batch_has_about_four_million_tokens(sequence: int, devices: int, batch: int) -> None:
    assert plan.default_batch(sequence, devices) == batch


def test_keys_change_the_setup() -> None:
    line = "model=gpt3_13b machine=a100 devices=16 batch=48 sequence=1024 generation=fused"
    base, devices = setup_of(line)
    assert (devices, base.batch, base.model.sequence, base.generation.name) == (16, 48, 1024, "fused")
    assert (base.model.gated, base.model.kv_heads, base.model.layers) == (False, 40, 40)
    assert base.machine.family == "a100"


def test_every_data_sheet_with_devices_has_a_family() -> None:
    sheets = {path.stem: read_typed(dict[str, object], path) for path in (conf_folder() / "machine").glob("*.yaml")}
    products = {name: sheet["family"] for name, sheet in sheets.items() if "devices" in sheet}
    assert len(products) >= 15
    for name, family in products.items():
        assert plan.described("llama3_8b", name)[1].family == family


@pytest.mark.parametrize(
    ("words", "what", "legal"),
    [
        ("modle=llama3_8b machine=h100 devices=8", "no key named 'modle'", "did you mean 'model'?"),
        ("model=llama3_8 machine=h100 devices=8", "no model named 'llama3_8'", "did you mean 'llama3_8b'?"),
        ("model=alexnet machine=h100 devices=8", "model=alexnet of AlexNet", "model=llama3_8b"),
        ("model=llama3_8b machine=h10 devices=8", "no machine named 'h10'", "did you mean 'h100'?"),
        ("model=llama3_8b machine=perlmutter devices=8", "machine=perlmutter", "machine=h100"),
        ("model=llama3_8b machine=h100 devices=four", "devices=four", "devices=64"),
        ("model=llama3_8b machine=h100 devices=0", "devices=0", "devices=64"),
        ("model=llama3_8b machine=h100 devices=8 batch=1.5", "batch=1.5", "batch=512"),
        ("model=llama3_8b machine=h100 devices=8 sequence=-1", "sequence=-1", "sequence=8192"),
        ("model=llama3_8b machine=h100 devices=8 top=all", "top=all", "top=5"),
        (
            "model=llama3_8b machine=h100 devices=8 generation=compild",
            "no generation named",
            "did you mean 'compiled'?",
        ),
        (
            "model=llama3_8b machine=a100 devices=8 generation=fp8",
            "generation=fp8 on machine=a100",
            "generation=compiled",
        ),
        ("machine=h100 devices=8", "suite plan without model=", "model=llama3_8b"),
        ("model=llama3_8b devices=8", "suite plan without machine=", "machine=h100"),
        ("model=llama3_8b machine=h100", "suite plan without devices=", "devices=64"),
        ("model=llama3_8b machine=h100 devices=97 batch=1", "batch=1 with devices=97", "batch=97"),
    ],
)
def test_wrong_keys_are_refused_with_a_legal_value(
    words: str, what: str, legal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words.split()]) == Exit.NOTHING
    printed = capsys.readouterr()
    assert not printed.out
    assert what in printed.err
    assert "; rule: " in printed.err
    assert printed.err.strip().endswith(f"legal: {legal}")


def test_a_model_that_fits_nowhere_is_refused_with_enough_devices(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=llama3_405b", "machine=h100", "batch=256"]
    assert main(["plan", *words, "devices=32"]) == Exit.NOTHING
    refused = capsys.readouterr().err
    match = re.fullmatch(
        r"refused: devices=32, on which the smallest of \d+ layouts needs \d+\.\d GB per device; rule: [^;]+; "
        r"legal: devices=(\d+)\n",
        refused,
    )
    assert match, refused
    base, _ = setup_of(" ".join([*words, "devices=32"]))
    assert ranked(layouts(base, int(match[1])), 1).fit
    assert main(["plan", *words, f"devices={int(match[1]) // 2}"]) == Exit.NOTHING
