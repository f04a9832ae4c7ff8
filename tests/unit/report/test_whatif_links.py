"""Links from the report to the what-if page: only with a page, at the point of a run or of a claim."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from suite.claims.claim import Judged, Verdict
from suite.report.load import read_store
from suite.report.page.page import render
from tests.support.report_records import make, store
from tests.unit.report.test_page_claims import claim
from tests.unit.whatif.test_evidence import CATALOGUE, CONFIG

RUN = "view=schedule schedule=zb_h1 ranks=4 microbatches=8 replicas=2"
CLAIM = "view=cluster system=axonn_samo devices=128"
ROWS = {"claims": [{"href": "claims.html#claim-demo.speedup", "words": CLAIM}]}


def pages(folder) -> dict[str, str]:
    run = make("axonn 4x2")
    store(folder, replace(run, config={**run.config, **CONFIG}))
    return render(read_store(folder), judged=[Judged(claim(), Verdict.NOT_RUN, "")])


def write(folder, **files: str) -> None:
    (folder / "whatif").mkdir()
    for name, text in files.items():
        (folder / "whatif" / name.replace("_", ".")).write_text(text)


def test_sections_link_to_their_points(tmp_path) -> None:
    write(tmp_path, index_html="", choices_json=json.dumps(CATALOGUE), evidence_json=json.dumps(ROWS))
    found = pages(tmp_path)
    for page, words in (("experiment-demo.html", RUN), ("paper-axonn.html", CLAIM)):
        assert f'href="whatif/index.html#{words.replace(" ", "&amp;")}"' in found[page]
        assert f"<code>suite whatif --serve {words}</code>" in found[page]


@pytest.mark.parametrize(
    "files",
    [
        {"choices_json": json.dumps(CATALOGUE), "evidence_json": json.dumps(ROWS)},
        {"index_html": "", "choices_json": "[", "evidence_json": "{}"},
        {"index_html": "", "choices_json": '{"schedules": 3}', "evidence_json": '{"claims": []}'},
    ],
)
def test_there_is_no_link_without_a_page_or_with_damaged_choices(tmp_path, files) -> None:
    write(tmp_path, **files)
    assert not any("whatif/" in text for text in pages(tmp_path).values())
