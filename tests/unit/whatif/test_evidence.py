"""Evidence of the page: distance and order, words of a point, and rows from claims and records."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest

from suite.claims import blind
from suite.whatif.evidence import UNSTATED, near
from suite.whatif.export_evidence import evidence
from suite.whatif.points import point_words
from tests.support.report_records import make, store

LATEST = {"_target_": "suite.weights.Latest", "graph": "keep"}
STASH = {"_target_": "baselines.pipedream.Stash", "graph": "recompute"}
ONE_F_ONE_B = {"_target_": "suite.schedule.OneFOneB"}
MESSAGE_DRIVEN = {"_target_": "suite.schedule.MessageDriven", "cap": None}
STAIRCASE = {"_target_": "suite.schedule.Staircase", "lead": 1, "split": True}
CATALOGUE = {
    "schedules": {
        "message_driven": {"schedule": MESSAGE_DRIVEN, "weights": LATEST, "update_interval": None},
        "one_f_one_b": {"schedule": ONE_F_ONE_B, "weights": LATEST, "update_interval": None},
        "zb_h1": {"schedule": STAIRCASE, "weights": LATEST, "update_interval": None},
        "pipedream": {"schedule": ONE_F_ONE_B, "weights": STASH, "update_interval": 1},
    },
    "weights": {"latest": LATEST, "stash": STASH},
    "models": {"gpt3_2_7b": {}},
    "machines": {"summit": {"family": "v100"}},
    "systems": {"axonn_samo": {}, "pipeline": {}},
    "efficiencies": {"summit": {}},
}
CONFIG = {
    "executor": {"kind": "real"},
    "system": {"name": "zb_h1", "choice": "pipeline schedule=zb_h1"},
    "model": {"name": "gpt3_2_7b"},
    "schedule": STAIRCASE,
    "weights": LATEST,
    "update_interval": None,
    "grid": {"inter": 4, "data": 2, "tensor": 1},
    "batch": {"size": 32, "microbatch": 2},
}
SIMULATED = {"kind": "simulated", "plan": "given", "machine": {"name": "summit"}, "efficiency": {"name": "summit"}}


def row(name: str, kind: str, **at: object) -> dict[str, object]:
    return {"claim": name, "evidence": kind, "href": f"claims.html#claim-{name}", "printed": 2, "at": at}


def test_nearest_rows_come_first_and_stronger_evidence_wins_ties() -> None:
    point = {"schedule": "zbv", "weights": "latest", "ranks": 8}
    rows = [
        row("derived", "derived", schedule="zbv", weights="latest", ranks=8),
        row("measured", "measured", schedule="zbv", weights="latest", ranks=8, model="gpt_tiny"),
        row("other", "measured", schedule="gpipe", weights="latest", ranks=8),
        row("half", "measured", schedule="zbv", weights="latest", ranks=4),
        row("unstated", "measured", schedule="zbv", weights="latest"),
        row("far", "measured", schedule="gpipe", weights="stash", ranks=1),
    ]
    (table,) = near(point, {"claims": rows, "runs": []}).tables
    assert table.columns == ["claim", "printed", "ours", "unit", "evidence", "verdict", "distance"]
    names = ["measured", "derived", "half", "unstated", "other"]  # `far` is farther than a row without features
    assert [cells[0].text for cells in table.rows] == names
    assert [cells[-1] for cells in table.rows] == pytest.approx([0, 0, log(2), UNSTATED, 1], abs=1e-6)
    assert table.rows[0][0].href == "../claims.html#claim-measured"
    assert table.rows[0][1] == 2
    assert len(near(point, {"claims": rows}, 2).tables[0].rows) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "view=schedule schedule=zb_h1 ranks=4 microbatches=8 replicas=2"),
        (
            {"schedule": {**STAIRCASE, "lead": 3}, "grid": {"inter": 4, "data": 1}},
            "schedule.lead=3 ranks=4 microbatches=16",
        ),
        (
            {"schedule": ONE_F_ONE_B, "weights": STASH, "update_interval": 1, "system": {"asynchronous": True}},
            "view=schedule schedule=pipedream ranks=4 replicas=2",
        ),
        ({"schedule": ONE_F_ONE_B, "weights": STASH, "update_interval": 2}, "schedule=pipedream update=2 ranks=4"),
        ({"grid": {"inter": 1, "data": 2}}, ""),
        ({"executor": {"kind": "full_graph"}}, ""),
        ({"schedule": {**STAIRCASE, "lead": "1; rm -r /"}}, ""),
        ({"schedule": None, "grid": "4x2", "batch": None}, ""),
        (
            {"executor": SIMULATED},
            "view=cluster system=pipeline schedule=zb_h1 model=gpt3_2_7b machine=summit efficiency=summit devices=8"
            " batch=32 layout=given tensor=1 pipeline=4 microbatch=2",
        ),
        ({"executor": {**SIMULATED, "plan": "search"}}, "batch=32 layout=search"),
        ({"executor": SIMULATED, "model": {"name": "alexnet"}}, ""),
    ],
)
def test_words_of_a_configuration(changes, words) -> None:
    found = " ".join(point_words(CONFIG | changes, CATALOGUE))
    assert found == words if words.startswith("view=") or not words else words in found


def test_claims_and_runs_have_the_features_of_their_settings(tmp_path) -> None:
    run = make("axonn 4x2")
    run = replace(run, config={**run.config, **CONFIG})
    store(tmp_path, run)
    store(tmp_path, replace(run, key="without", label="without", metrics={}))
    found = evidence(tmp_path, CATALOGUE)
    (ran,) = found["runs"]
    assert (ran["batch time"], ran["href"]) == (0.11, "experiment-demo.html")
    names = {"schedule": "zb_h1", "weights": "latest", "system": "pipeline", "model": "gpt3_2_7b"}
    assert ran["at"].items() >= {**names, "ranks": 4, "microbatches": 8, "devices": 8}.items()
    claims = {each["href"].partition("#claim-")[2]: each for each in found["claims"]}
    bubble = claims["schedules.zb.table5.1.5b_m24.zb_h1"]
    assert (bubble["printed"], bubble["verdict"]) == (0.1585, "not run")
    times = "forward=18.522 input=18.086 weight=9.337 link=0.601"
    assert bubble["words"] == f"view=schedule schedule=zb_h1 ranks=8 microbatches=24 {times}"
    speedup = claims["samo.fig8.bubble.gpus_128"]
    assert (
        speedup["at"].items() >= {"model": "gpt3_2_7b", "machine": "summit", "family": "v100", "devices": 128}.items()
    )
    assert "layout=given tensor=1 pipeline=2 microbatch=1" in speedup["words"]
    assert not any(name.startswith("sparse_gnn.") for name in claims)


def test_hidden_outcomes_give_no_claims(tmp_path) -> None:
    with blind.hiding():
        assert evidence(tmp_path, CATALOGUE) == {"claims": [], "runs": []}
