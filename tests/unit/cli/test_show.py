"""Output of suite draw and suite show, and the result of a run in one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from suite.cli.draw import draw
from suite.cli.result_line import format_result
from suite.cli.run import run
from suite.cli.show import find, lines, main
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.record import Metric, Outcome, Record, Source
from tests.support.refusals import refused

REFUSED: list[tuple[list[str], str, Any]] = [  # overrides, key, value
    (["system=pytorch", "grid.inter=3"], "system", "pytorch"),
    (["system=torch_pipelining", "schedule=message_driven"], "schedule", "suite.schedule.MessageDriven"),
    (["system=torch_pipelining", "~system.orders"], "system.orders", None),
    (["system=cagnet", "grid.data=2"], "system", "cagnet"),
    (["system=pipedream", "grid.inter=2", "schedule=zbv"], "weights", "Stash"),
    (["system=pipeoptim", "update_interval=often"], "update_interval", "often"),
    (["executor.ticks.forward=0"], "executor.ticks.forward", 0),
    (["executor=simulated"], "executor", "simulated"),
    (["grid.inter=2000"], "", None),
    (["system=gpipe", "weights=stash"], "update_interval", None),
    # keys that do not change a drawing
    (["model=gpt_tiny"], "model", "gpt_tiny"),
    (["system=axonn", "grid.tensor=2"], "grid.tensor", "2"),
]


def test_illegal_run_is_not_drawn() -> None:
    for overrides, key, value in REFUSED:
        with refused(InvalidRequest, key, value):
            draw(overrides)


def test_pipeoptim_reads_ahead() -> None:
    grid, versions = draw(["system=pipeoptim", "grid.inter=3"]).split("\n\n")
    assert len(grid.splitlines()) == 5
    assert versions.splitlines()[0].split()[-7:] == [*"012345", "copies"]
    assert [line.split() for line in versions.splitlines()[1:]] == [
        ["stage", "0", "forward", "0+2", "0+2", "0+2", "1+2", "2+2", "3+2", "2"],
        ["stage", "0", "backward", *"012345"],
        ["stage", "1", "forward", "0+1", "0+1", "1+1", "2+1", "3+1", "4+1", "2"],
        ["stage", "1", "backward", *"012345"],
        ["stage", "2", "forward", *"012345", "1"],
        ["stage", "2", "backward", *"012345"],
    ]


SIMULATED = ("executor=simulated", "machine=perlmutter", "system=megatron_lm", "model=gpt3_xl", "grid.inter=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reports")
    run([*SIMULATED, f"reports={path}"])
    run(["executor=check", "system=pipeoptim", "grid.inter=4", f"reports={path}"])
    run(["executor=analytic", "executor.paper=axonn", f"reports={path}"])
    run(["model=gpt3_175b", f"reports={path}"])  # refused: no machine of these tests has terabytes
    return path


def test_record_is_found_by_each_of_its_names(folder: Path) -> None:
    record = find("megatron_lm", folder)
    file = str(folder / "records" / f"{record.key}.json")
    for query in (record.key, record.key[:12], record.label, "megatron_lm 2x1", file):
        assert find(query, folder) == record
    for query in ("", "nothing of the kind"):
        with pytest.raises(InvalidRequest):
            find(query, folder)
    with pytest.raises(InvalidRequest) as caught:
        find("sputnik", folder)
    assert record.label in str(caught.value), "the newest labels"


def test_record_is_shown_with_metrics_memory_notes_and_reason(folder: Path) -> None:
    record, refusal = find("megatron_lm", folder), find("axonn 1x1 model", folder)
    text = "\n".join(lines(record))
    assert record.provenance["command"] in " ".join(text.split())
    assert re.search(r"^batch_time .* 1 +s +simulated", text, flags=re.M)
    memory = re.search(r"^all .*$", text, flags=re.M)
    assert memory
    assert memory[0].count("GB") == len(record.memory["predicted"]["weights"]) == 2
    assert all(note[:40] in " ".join(text.split()) for note in record.notes)
    assert refusal.reason.split(";")[0] in " ".join("\n".join(lines(refusal)).split())


def test_command_prints_or_refuses(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["megatron_lm", f"reports={folder}"]) == Exit.OK
    assert capsys.readouterr().out.startswith("megatron_lm 2x1")
    assert main(["megatron_lm", "reports=/nowhere"]) == Exit.NOTHING
    assert main(["megatron_lm", "folder"]) == Exit.NOTHING


def record(source: Source = Source.MEASURED, **values: object) -> Record:
    return Record("k", "single", "axonn", "axonn 2x1", Outcome.OK, source, **values)  # type: ignore[arg-type]


def metric(unit: str, *values: float, note: str = "") -> Metric:
    return Metric(unit, "lower", values, note)


BATCH = {"batch_time": metric("s", 0.1, 0.2, 0.3)}
PEAK = {**BATCH, "flops_per_batch": metric("flop", 1e12), "peak_flops": metric("flop/s", 1e13)}
LOSS = {"loss": [5.0, 4.0]}
PLANS = ("best of 2 plans that fit, of 3: 2x1, 4 a time", "other")
COUNTS = {"rows_sent": metric("row", 5000), "memory_per_process": metric("B", 3e6), "copies": metric("copy", 1)}
LINES: list[tuple[Record, str]] = [
    (record(metrics=BATCH, series=LOSS), "200 ms per batch, loss 5.0000 to 4.0000, measured"),
    (record(metrics=PEAK), "200 ms per batch, 50.0 percent of peak, measured"),
    (record(Source.SIMULATED, metrics=BATCH, notes=PLANS), f"200 ms per batch, {PLANS[0]}, simulated"),
    (
        record(metrics={"replay_time": metric("s", 0.5, 0.7)}, memory={"predicted": {"weights": [1, 5], "in": [3, 1]}}),
        "600 ms per batch in one process, 6 B on the fullest rank, measured",
    ),
    (record(metrics=COUNTS), "5,000 rows sent per product, 3 MB on the fullest process, measured"),
    (record(metrics={"samo.fig8.total": metric("s", 1.0)}), "1 claim answered, measured"),
]


def test_result_of_each_kind_of_run() -> None:
    for stored, line in LINES:
        assert format_result(stored).startswith(line)
