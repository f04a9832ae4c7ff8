"""Output of `suite show` for a record."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from suite.cli.run import run
from suite.cli.show import find, lines, main
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit

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
