"""Output of `suite show` for a record."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from suite.claims import load
from suite.claims.answer import answers_of_figure
from suite.claims.formula_executor import FIGURE
from suite.cli.run import run, summary
from suite.cli.show import find, lines, main
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from tests.support.refusals import refused

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


def test_damaged_records_are_counted_in_the_refusal(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "a.json").write_text("{")
    with refused(InvalidRequest, "RECORD", "a", rule="1 that cannot be read"):
        find("a", tmp_path)


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


MEASURED = Path(__file__).parents[2] / "reports" / "measured"


def test_committed_records_can_be_shown_line_by_line() -> None:
    for file in sorted(MEASURED.glob("*/*.jsonl"))[::4]:
        record = find(f"{file}#1", MEASURED.parent)
        assert find(record.key, MEASURED.parent) == record
        assert next(lines(record)) == record.label
    with refused(InvalidRequest, legal="jsonl#1"):
        find(str(next(MEASURED.glob("*/microbatch.jsonl"))), MEASURED.parent)


def test_command_prints_or_refuses(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["megatron_lm", f"reports={folder}"]) == Exit.OK
    assert capsys.readouterr().out.startswith("megatron_lm 2x1")
    assert main(["megatron_lm", "reports=/nowhere"]) == Exit.NOTHING
    assert main(["megatron_lm", "folder"]) == Exit.NOTHING


def test_line_of_a_run_follows_its_kind(folder: Path) -> None:
    formulas = [claim for claim, _ in answers_of_figure(load.claims(), FIGURE) if claim.paper == "axonn"]
    for query, parts in {
        "megatron_lm": ("s per batch", "percent of peak", "GB on the fullest rank", "simulated"),
        "pipeoptim": ("makespan 45 ticks", "4 microbatches in flight", "copies of the weights", "analytic"),
        "axonn formulas": (f" {len(formulas)} claims answered", "analytic"),
    }.items():
        line = summary(find(query, folder))
        assert [part for part in parts if part not in line] == [], line
