"""A paper is a folder: a new one is found, answered, judged and shown without a change outside of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import suite.papers
from suite.claims import load
from suite.claims.claim import Verdict
from suite.claims.verdicts_now import judge_claims
from suite.cli.run import run
from suite.report import write_report
from suite.runner.runs import expand
from tests.support.pages import site

ROW = """
- {id: toy.eq1.sum, where: Equation 1, quantity: sum, value: 3.0, unit: count, kind: number, reach: analytic,
   asserts: One and two are three., role: derivation, check: number,
   answers: [{evidence: derived, figure: formulas, function: suite.papers.toy.formulas.total}]}
"""
CODE = "def total(question, papers):\n    return [[1 + 2]], 'their sum'\n"


@pytest.fixture
def papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The papers' folder with one more."""
    folder = tmp_path / "papers"
    (folder / "toy").mkdir(parents=True)
    for path in load.FOLDER.iterdir():
        (folder / path.name).symlink_to(path)
    for name, text in (("claims.yaml", ROW), ("formulas.py", CODE), ("README.md", "# Toys and joys\n")):
        (folder / "toy" / name).write_text(text)
    monkeypatch.setattr(load, "FOLDER", folder)
    monkeypatch.setattr(suite.papers, "__path__", [str(folder)])


def test_a_new_paper_needs_no_file_outside_its_folder(papers: None, tmp_path: Path) -> None:
    assert "toy formulas" in [entry.label for entry in expand(["experiment=formulas"])]
    (record,) = run(["experiment=formulas", f"reports={tmp_path}", "experiment.runs=['executor.paper=toy']"])
    assert record.metrics["toy.eq1.sum"].values == (3.0,)
    assert judge_claims(["toy"])["toy.eq1.sum"].verdict is Verdict.CONSISTENT, "no mutation is registered"
    page = site(write_report(tmp_path))
    assert "Toys and joys" in page
    assert "One and two are three." in page
