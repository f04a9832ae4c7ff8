"""Output of `suite show` for a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.cli.run import run, summary
from suite.cli.show import find, lines, main
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.papers.common import claims
from suite.papers.common.answer import answers_of_figure
from suite.papers.common.formula_executor import FIGURE
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


@pytest.mark.parametrize("how", ["key", "prefix", "label", "beginning", "file"])
def test_record_is_found_by_each_of_its_names(how: str, folder: Path) -> None:
    record = find("megatron_lm", folder)
    queries = {
        "key": record.key,
        "prefix": record.key[:12],
        "label": record.label,
        "beginning": "megatron_lm 2x1",
        "file": str(folder / "records" / f"{record.key}.json"),
    }
    assert find(queries[how], folder) == record


@pytest.mark.parametrize("query", ["", "nothing of the kind"])
def test_name_of_no_record_or_of_several_is_refused(query: str, folder: Path) -> None:
    with pytest.raises(InvalidRequest):
        find(query, folder)


def shown_lines(query: str, folder: Path) -> list[str]:
    return list(lines(find(query, folder)))


def test_simulated_record_is_shown_with_units_plan_and_changes(folder: Path) -> None:
    text = shown_lines("megatron_lm", folder)
    record = find("megatron_lm", folder)
    part = text[text.index("config, where it differs from the defaults") + 1 :]
    changed = [line.strip() for line in part[: next(i for i, line in enumerate(part) if line[0] != " ")]]
    assert set(changed) == {
        *("executor=simulated", "machine=perlmutter", "model=gpt3_xl", "system=megatron_lm", "grid.inter=2"),
    }
    assert any(line.startswith("  batch_time") and " s (simulated" in line for line in text)
    memory = next(line.split() for line in text if line.startswith("  all "))
    assert memory.count("GB") == len(record.memory["predicted"]["weights"]) == 2
    assert all(f"  {note}" in text for note in record.notes)
    assert "  evidence    simulated" in text


def test_refused_record_is_shown_with_its_reason(folder: Path) -> None:
    text = "\n".join(shown_lines("axonn 1x1 model", folder))
    assert "outcome     unsupported" in text
    assert "launch.memory_check=false" in text


MEASURED = Path(__file__).parents[2] / "reports" / "measured"


def test_committed_records_can_be_shown() -> None:
    for file in sorted(MEASURED.glob("*/*.jsonl"))[::4]:
        record = find(f"{file}#1", MEASURED.parent)
        assert find(record.key, MEASURED.parent) == record
        assert next(lines(record)) == record.label


def test_file_of_several_records_needs_a_line() -> None:
    file = next(MEASURED.glob("*/microbatch.jsonl"))
    with refused(InvalidRequest, legal="jsonl#1"):
        find(str(file), MEASURED.parent)


def test_command_prints_or_refuses(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["megatron_lm", f"reports={folder}"]) == Exit.OK
    assert capsys.readouterr().out.startswith("megatron_lm 2x1")
    assert main(["megatron_lm", "reports=/nowhere"]) == Exit.NOTHING
    assert main(["megatron_lm", "folder"]) == Exit.NOTHING


def test_line_of_a_run_is_what_it_is_about(folder: Path) -> None:
    summaries = {query: summary(find(query, folder)) for query in ("megatron_lm", "pipeoptim", "axonn formulas")}
    assert all(
        word in summaries["megatron_lm"] for word in ("ms per batch", "percent of peak", "GB per device", "simulated")
    )
    for word in ("makespan 45 ticks", "percent idle", "4 microbatches in flight", "copies of the weights", "analytic"):
        assert word in summaries["pipeoptim"]
    formulas = [claim for claim, _ in answers_of_figure(claims.load(), FIGURE) if claim.paper == "axonn"]
    assert summaries["axonn formulas"].endswith(f" {len(formulas)} claims answered, analytic")


def test_unknown_label_lists_the_newest_labels(folder: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        find("sputnik", folder)
    assert "megatron_lm 2x1" in str(caught.value)
