"""Evidence of the page from a reports folder: published claims with their verdicts, and runs with a batch time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from suite.claims import blind, judge, load
from suite.claims.claim import Claim, Judged
from suite.claims.cluster_runs import SAMO_MODELLED
from suite.claims.plans import published_plans
from suite.config.families import content
from suite.core.record import Outcome, Record
from suite.core.values import Json
from suite.papers.schedules.orders import NAMES
from suite.report import derive
from suite.report.load import StoredRecord, read_store, text_at
from suite.report.names import named, unit
from suite.report.page.page import experiment_page
from suite.report.tables import claim_tables
from suite.whatif.catalogue import Catalogue
from suite.whatif.export import names
from suite.whatif.points import schedule_point, system_of, value_at, weights_of, whole_at, words

Row: TypeAlias = "dict[str, Json]"
SYSTEMS = names("system")
SCHEDULE = "override /schedule"  # a default of a system
MODELS = {row["id"]: row for row in load.settings()["models"]}  # as published
OP_TIMES = {"tf": "forward", "tb": "input", "tw": "weight", "tcomm": "link"}  # keys of the page by names in claims
RANKS = ("stages", "pipeline_stages", "g_inter", "p", "ranks")  # names of the ranks of a pipeline in claims


def evidence(folder: Path, catalogue: Catalogue, changed: Callable[[Record], str] = lambda _: "") -> dict[str, Any]:
    """Content of evidence.json: rows of `claims` and `runs`. Hidden outcomes (suite.claims.blind) give no claims.

    Args:
        folder: The reports folder.
        catalogue: Choices of the page.
        changed: As in suite.report.load.read_store.
    """
    store = read_store(folder, changed)
    judged = [] if blind.active() else judge.judge(load.claims(), store)
    entries = [entry for group in derive.groups(store) for entry in group.entries]
    return {
        "claims": [row for item in judged if (row := claim_row(item, catalogue))],
        "runs": [row for entry in entries if (row := run_row(entry, catalogue))],
    }


def run_row(entry: StoredRecord, catalogue: Catalogue) -> Row | None:
    """A run with a batch time that others can be compared with, and a schedule of the page; None for another record."""
    record, config, time = entry.record, entry.record.config, derive.samples(entry.record, derive.BATCH_TIME).median
    point = schedule_point(config, catalogue)
    if record.outcome is not Outcome.OK or not derive.comparable(record) or not time > 0 or not point:
        return None
    flops, tokens = (derive.samples(record, name).median for name in ("flops_per_batch_6nd", "tokens_per_batch"))
    parameters = derive.ratio(flops, 6 * tokens)
    at: Row = {name: point.get(name) for name in ("schedule", "ranks", "microbatches")}
    at |= {"weights": weights_of(config, catalogue), "system": system_of(config).partition(" ")[0]}
    at |= {"model": value_at(config, "model.name"), "machine": value_at(config, "executor.machine.name")}
    at["devices"] = point["ranks"] * point.get("replicas", 1) * (whole_at(config, "grid.tensor") or 1)
    at["parameters"] = rounded(parameters) if 0 < parameters < math.inf else None
    title = text_at(config, "experiment", "title") or record.experiment
    return {
        "run": f"{named(record.label)} ({title}{f', {entry.machine}' if entry.machine else ''})",
        "batch time": rounded(time),
        "unit": "s",
        "evidence": record.source.value.replace("analytic", "derived"),
        "href": experiment_page(record.experiment),
        "at": stated(at, catalogue),
    }


def claim_row(item: Judged, catalogue: Catalogue) -> Row | None:
    """A claim as the report shows it; None for one without a schedule or a model of the page."""
    claim, printed, ours = item.claim, item.claim.value, [value for case in item.ours for value in case]
    at, point = claim_point(claim, catalogue)
    if not at.keys() & {"schedule", "model"}:
        return None
    row = {
        "claim": claim.asserts,
        "printed": rounded(printed) if isinstance(printed, float) else claim_tables.published(claim).text,
        "ours": rounded(ours[0]) if len(ours) == 1 else claim_tables.in_short(item) if ours else None,
        "unit": unit(claim.unit),
        "evidence": item.evidence.value if item.evidence else "",
        "verdict": item.verdict.value,
        "href": f"claims.html#{claim_tables.anchor(claim.id)}",
        "words": " ".join(words(point)) if claim.displays else "",
        "at": at,
    }
    return {name: value for name, value in row.items() if value not in (None, "")}


def claim_point(claim: Claim, catalogue: Catalogue) -> tuple[Row, Row]:
    """Features of a claim, and its point on the page, as far as setting, points, answers and plan state them."""
    given: Any = {**next(iter(claim.points), {}), **claim.setting}
    for answer in claim.answers:
        given = {**answer.arguments, **given}
    called = [given.get("schedule", ""), *given.get("schedules", ()), *claim.system.split(", "), *claim.terms]
    system, schedule = next((found for name in called if (found := pipeline_of(str(name), catalogue))[1]), ("", ""))
    system = SAMO_MODELLED.get(system, system) if claim.paper == "samo" else system
    model, machine, plans = str(given.get("model", "")), given.get("machine"), published_plans().get(claim.paper, {})
    plan = plans.get("scaling", {}).get(system, {}).get(model, {}) if machine == plans.get("machine") else {}
    plan = {"tensor": 1, "microbatch": 1, "split": "even", **plan}
    ranks, gpus = whole_of(given, *RANKS) or plan.get("inter", 0), whole_of(given, "gpus")
    batch = whole_of(given, "batch_size") or MODELS.get(model, {}).get("batch_size")
    microbatches = whole_of(given, "microbatches", "m", "counts") or whole_of(given, "rounds") * ranks
    placed: Row = {"system": system, "model": model, "machine": machine, "devices": gpus or ranks}
    piped: Row = {"schedule": schedule, "ranks": ranks, "microbatches": microbatches}
    point: Row = {}
    known = model in catalogue.get("models", ()) and machine in catalogue.get("machines", ())
    if known and system and gpus and batch and plan["split"] == "even":  # as the page splits layers
        tensor, size = plan["tensor"], whole_of(given, "microbatch_size") or plan["microbatch"]
        layout = {"layout": "given", "tensor": tensor, "pipeline": ranks, "microbatch": size}
        point = {"view": "cluster", **placed, "efficiency": plans.get("efficiency"), "batch": batch}
        point |= layout if ranks and gpus % (ranks * tensor) == 0 else {"layout": "search"}
        point["sparsity"] = given.get("sparsity")
    elif schedule and ranks > 1:
        chunks, own = whole_of(given, "chunks", "v"), catalogue["schedules"][schedule]["schedule"].get("chunks")
        point = {"view": "schedule", **piped, "schedule.chunks": chunks if own and chunks != own else 0}
        point |= {key: given.get(name) for name, key in OP_TIMES.items()}
    weights = weights_of(catalogue["schedules"].get(schedule, {}), catalogue)
    at = piped | placed | {"weights": weights, "parameters": MODELS.get(model, {}).get("parameters")}
    return stated(at, catalogue), {key: value for key, value in point.items() if value}


def pipeline_of(name: str, catalogue: Catalogue) -> tuple[str, str]:
    """System of conf/system and schedule of the page for a name in a claim; without a schedule for any other name."""
    name, known = NAMES.get(name, name), catalogue["schedules"]
    if name in known:
        return name if name in SYSTEMS else "pipeline", name
    rows = content("system", name).keys["defaults"] if name in SYSTEMS else ()
    return name, next((row[SCHEDULE] for row in rows if row.get(SCHEDULE) in known), "")


def whole_of(given: Mapping[str, Json], *keys: str) -> int:
    """The first whole number, or first of several, under one of these names; 0 without one."""
    values = (value[0] if isinstance(value := given.get(key), list | tuple) and value else value for key in keys)
    return next((value for value in values if type(value) is int and value > 0), 0)


def stated(at: Row, catalogue: Catalogue) -> Row:
    """The features that have a value, with the family of the machine."""
    family = value_at(catalogue, f"machines.{at['machine']}.family")
    return {name: value for name, value in {**at, "family": family}.items() if value}


def rounded(value: float) -> float:
    """A number with four significant digits."""
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short
