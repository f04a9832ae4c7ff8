"""Tables of verdicts by evidence: counted from claims.json, printed or written into a document."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from suite.artifact.build import scale_seconds
from suite.claims import load
from suite.claims.claim import Evidence, Verdict
from suite.cli.report import main
from suite.cli.reproduce import ACCURACY_SECONDS
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.core.units import seconds
from suite.report.tables import evidence_table
from tests.support.refusals import refused

ROOT = Path(__file__).resolve().parents[3]
ROWS = [
    ("axonn", Verdict.REPRODUCED, Evidence.MEASURED),
    ("axonn", Verdict.REPRODUCED, Evidence.MEASURED),
    ("axonn", Verdict.REPRODUCED, Evidence.DERIVED),
    ("axonn", Verdict.NOT_RUN, None),
    ("samo", Verdict.MATCHED, Evidence.SIMULATED),
]


def begin(name: str) -> str:
    return f"<!-- verdicts by {name}: begin -->"


def end(name: str) -> str:
    return begin(name).replace("begin", "end")


def folder_of(path: Path, rows: Any = ROWS) -> Path:
    entries = [{"paper": paper, "verdict": verdict, "evidence": evidence} for paper, verdict, evidence in rows]
    (path / "claims.json").write_text(json.dumps(entries))
    return path


def test_verdicts_are_counted_by_evidence_and_not_added_up(tmp_path: Path) -> None:
    text = evidence_table.markdown(evidence_table.entries(folder_of(tmp_path)))
    first, whole, axonn, _, samo, *none = text.split("\n\n**")
    assert axonn.splitlines() == [
        "AxoNN, 4 claims**",
        "",
        "| verdict | measured | derived | none |",
        "|---|---:|---:|---:|",
        "| ✓ reproduced | 2 | 1 | 0 |",
        "| ○ not run | 0 | 0 | 1 |",
    ]
    assert samo.splitlines()[2:] == ["| verdict | simulated |", "|---|---:|", "| ∼ matched by the model | 1 |"]
    assert first == "4 of 5 claims have a value in the records of this page."
    assert whole.startswith("All papers, 5 claims**")
    assert "| ✓ reproduced | 2 | 1 | 0 | 0 |" in whole
    assert [one.split(",")[0] for one in none] == ["Pipeline schedules", "Sparsity-aware GNN"]


def test_papers_are_columns_of_one_table(tmp_path: Path) -> None:
    assert evidence_table.by_paper(evidence_table.entries(folder_of(tmp_path))).splitlines() == [
        "| verdict | AxoNN | PipeOptim | SAMO | Pipeline schedules | Sparsity-aware GNN |",
        "|---|---:|---:|---:|---:|---:|",
        "| ✓ reproduced, measured | 2 | 0 | 0 | 0 | 0 |",
        "| ✓ reproduced, derived | 1 | 0 | 0 | 0 | 0 |",
        "| ∼ matched by the model | 0 | 0 | 1 | 0 | 0 |",
        "| ○ not run | 1 | 0 | 0 | 0 | 0 |",
        "| claims | 4 | 0 | 1 | 0 | 0 |",
    ]


def test_command_fills_the_document_between_its_markers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "page.md"
    document.write_text(f"before\n{begin('evidence')}\nold\n{end('evidence')}\nafter\n{begin('paper')}{end('paper')}")
    arguments = ["--evidence", str(document), f"reports={folder_of(tmp_path)}"]
    assert main(arguments) == Exit.OK
    first = document.read_text(encoding="utf-8")
    assert main(arguments) == Exit.OK
    assert document.read_text(encoding="utf-8") == first
    assert first.startswith(f"before\n{begin('evidence')}\n\n4 of 5 claims have a value")
    table = evidence_table.by_paper(evidence_table.entries(tmp_path))
    assert first.endswith(f"{end('evidence')}\nafter\n{begin('paper')}\n\n{table}\n\n{end('paper')}")
    assert "old" not in first
    capsys.readouterr()
    assert main(["--evidence", "-", f"reports={tmp_path}"]) == Exit.OK
    assert capsys.readouterr().out.strip() in first


DAMAGED = (
    None,
    "",
    "{}x",
    "3",
    "[3]",
    '[{"paper": "axonn"}]',
    '[{"paper": "axonn", "verdict": "refuted", "evidence": "measured"}]',
    '[{"paper": "axonn", "verdict": "differs", "evidence": "| x |"}]',
    '[{"paper": "another", "verdict": "differs", "evidence": "measured"}]',
)


def test_file_that_no_page_wrote_is_refused(tmp_path: Path) -> None:
    for text in DAMAGED:
        if text is not None:
            (tmp_path / "claims.json").write_text(text)
        with refused(InvalidRequest, subject="claims.json"):
            evidence_table.entries(tmp_path)


def test_document_without_markers_is_left_as_it_is(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    with pytest.raises(InvalidRequest):
        evidence_table.fill(document, [])
    assert not document.exists()
    first, last = begin("paper"), end("paper")
    for text in ("no marker", first, last, f"{last}\n{first}", f"{first}\n{end('evidence')}"):
        document.write_text(text)
        with pytest.raises(InvalidRequest):
            evidence_table.fill(document, [])
        assert document.read_text() == text


def committed_counts() -> list[evidence_table.ClaimCount]:
    """The claims behind the tables of docs/evidence.md, table by table, without the table of all papers."""
    counts = []
    text = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    for name, table in re.findall(r"^\*\*(.+), \d+ claims\*\*\n\n((?:\|.*\n)+)", text, flags=re.MULTILINE)[1:]:
        paper = next(paper for paper, title in load.titles().items() if title == name)
        (_, *evidence), _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        for verdict, *numbers in rows:
            for each, number in zip(evidence, numbers, strict=True):
                counts += [evidence_table.ClaimCount(paper, verdict.partition(" ")[2], each)] * int(number)
    return counts


@pytest.mark.parametrize("name", ["README.md", "docs/evidence.md"])
def test_committed_document_is_as_the_command_writes_it(name: str, tmp_path: Path) -> None:
    """Both documents show the same verdicts, on every claim of the suite."""
    counts = committed_counts()
    assert Counter(one.paper for one in counts) == Counter(claim.paper for claim in load.claims())
    document = tmp_path / "document.md"
    document.write_text(text := (ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    assert evidence_table.fill(document, counts).read_text(encoding="utf-8") == text


def test_readme_states_the_numbers_of_claims_and_experiments() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    counts = Counter(claim.paper for claim in load.claims())
    schedules = counts.pop("schedules")
    assert f"{counts.total()} published numbers" in text
    assert f"{schedules} statements" in text
    total, experiments = scale_seconds("laptop")
    expected = seconds(total + ACCURACY_SECONDS)
    assert f"{experiments} experiments at scale laptop, about {expected}" in text
    assert {int(count) for count in re.findall(r"\[\d+/(\d+)\]", text)} == {experiments}
