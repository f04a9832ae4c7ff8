"""Tables of verdicts by evidence: counted from claims.json, printed or written into a document."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from suite.cli.report import main
from suite.core.claim import Evidence, Verdict
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from suite.papers.common import claims
from suite.report.tables import evidence_table
from suite.report.tables.scorecard import PAPERS
from tests.support.refusals import refused

ROOT = Path(__file__).resolve().parents[3]
ROWS = [
    ("axonn", Verdict.REPRODUCED, Evidence.MEASURED),
    ("axonn", Verdict.REPRODUCED, Evidence.MEASURED),
    ("axonn", Verdict.REPRODUCED, Evidence.DERIVED),
    ("axonn", Verdict.NOT_RUN, None),
    ("samo", Verdict.MATCHED, Evidence.SIMULATED),
]


def folder_of(path: Path, rows: Any = ROWS) -> Path:
    entries = [{"paper": paper, "verdict": verdict, "evidence": evidence} for paper, verdict, evidence in rows]
    (path / "claims.json").write_text(json.dumps(entries))
    return path


def test_verdicts_are_counted_by_evidence_and_not_added_up(tmp_path: Path) -> None:
    text = evidence_table.markdown(evidence_table.entries(folder_of(tmp_path)))
    first, whole, axonn, samo, *none = text.split("\n\n**")
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
    assert [one.split(",")[0] for one in none] == ["PipeOptim", "Sparsity-aware GNN", "Pipeline schedules"]


def test_command_fills_the_document_between_its_markers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "page.md"
    document.write_text(f"before\n{evidence_table.BEGIN}\nold\n{evidence_table.END}\nafter\n")
    arguments = ["--evidence", str(document), f"reports={folder_of(tmp_path)}"]
    assert main(arguments) == Exit.OK
    first = document.read_text(encoding="utf-8")
    assert main(arguments) == Exit.OK
    assert document.read_text(encoding="utf-8") == first
    assert first.startswith(f"before\n{evidence_table.BEGIN}\n\n4 of 5 claims have a value")
    assert first.endswith(f"{evidence_table.END}\nafter\n")
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
        evidence_table.fill(document, "a table")
    assert not document.exists()
    begin, end = evidence_table.BEGIN, evidence_table.END
    for text in ("no marker", begin, end, f"{end}\n{begin}"):
        document.write_text(text)
        with pytest.raises(InvalidRequest):
            evidence_table.fill(document, "a table")
        assert document.read_text() == text


def test_committed_document_has_the_tables_of_all_papers() -> None:
    text = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    _, begin, rest = text.partition(evidence_table.BEGIN)
    table, end, _ = rest.partition(evidence_table.END)
    assert begin
    assert end
    heads = [line for line in table.splitlines() if line.startswith("**")]
    counts = Counter(claim.paper for claim in claims.load())
    names = {"All papers": counts.total(), **{name: counts[paper] for paper, name in PAPERS.items()}}
    assert heads == [f"**{name}, {count} claims**" for name, count in names.items()]
