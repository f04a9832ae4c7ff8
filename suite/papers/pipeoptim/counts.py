"""Counted answers to PipeOptim's claims: versions from ledgers, orders from the checker.

Table II follows the ledger that the engine obeys (suite.weights.Ledger) in the checker's order at unit cost, with the
configured schedule, policy and update interval of each system. probes_ranks answers the same claims by real ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from suite.claims.answer import Cases, Question, distinct_cases
from suite.claims.claim import Claim
from suite.claims.cluster_runs import Lab
from suite.claims.panel import NONE
from suite.core.expression import evaluate
from suite.core.figure import FigurePanel
from suite.core.op import FlushInterval, Kind, Op
from suite.core.protocols import Read, Schedule, WeightPolicy
from suite.papers.pipeoptim import systems
from suite.papers.pipeoptim.systems import ASYNCHRONOUS
from suite.schedule import OneFOneB
from suite.schedule.check import Timeline, check
from suite.weights import Latest, Ledger
from suite.weights.version_table import PASSES, entries, run_ledgers
from suite.workload.recurrent import GNMT
from suite.workload.split import divide

DEPTH = 4  # stages of every published run
EPOCH = 50_000 // 128  # mini-batches of the paper's shortest epoch between two drains: CIFAR-100 in 128 images


def ordered(stages: int, microbatches: int, update_interval: int = 1) -> Timeline:
    """Timeline of an epoch of 1F1B without a flush, with forward passes of 1 and backward passes of 2 units."""
    return check(OneFOneB(), stages, FlushInterval(0, microbatches, update_interval, 0))


def ledgers(
    policy: WeightPolicy, stages: int, update_interval: int | None = 1, schedule: Schedule | None = None
) -> list[Ledger]:
    """Ledger of each stage after an epoch long enough for the full pipeline to see one update per stage."""
    interval = FlushInterval(0, (2 * stages + 4) * (update_interval or 1), update_interval, 0)
    timeline = check(schedule or OneFOneB(), stages, interval)
    return run_ledgers(policy, [timeline.order(stage) for stage in range(stages)], interval)


def table(system: str, stages: int = DEPTH) -> list[Ledger]:
    """The ledgers of a configured system."""
    configured = systems.configured(system, stages)
    return ledgers(configured.policy, stages, configured.every, configured.schedule)


def reads(ledger: Ledger, microbatch: int, kind: Kind) -> Read:
    return entries(ledger, kind, steady=False)[microbatch].read


def pairs(ledger: Ledger, *, steady: bool = True) -> list[tuple[Read, Read]]:
    """Versions read by the forward and the backward pass of each mini-batch.

    A backward pass that keeps its graph reads the version of its forward pass.
    """
    forwards = {entry.op.index: entry.read for entry in entries(ledger, Kind.FORWARD, steady=steady)}
    backwards = {entry.op.index: entry.read for entry in entries(ledger, Kind.BACKWARD, steady=steady)}
    return [(read, backwards.get(index, read)) for index, read in forwards.items()]


def common_value(values: Sequence[float]) -> float:
    """The common value of all mini-batches, or their mean where they differ."""
    return values[0] if len(set(values)) == 1 else fmean(values)


def staleness(ledger: Ledger, kind: Kind) -> float:
    """Updates between the weights that a steady pass reads and those its gradient updates; negative if read ahead."""
    reads = entries(ledger, kind) or entries(ledger, Kind.FORWARD)
    return common_value([entry.staleness for entry in reads])


def steps_ahead(ledger: Ledger, kind: Kind) -> float:
    """Number of updates that a steady pass predicts ahead."""
    return common_value([entry.read.predict_steps for entry in entries(ledger, kind) or entries(ledger, Kind.FORWARD)])


def predictions(ledger: Ledger) -> float:
    """Passes per steady mini-batch that read predicted weights; passes that share a kept graph count once."""
    count = sum(entry.read.predict_steps > 0 for kind in PASSES for entry in entries(ledger, kind))
    return count / len(entries(ledger, Kind.FORWARD))


def by_definition(stages: int, stage: int, microbatches: int) -> list[tuple[Kind, int]]:
    """1F1B by definition: one warm-up forward per following stage, then forward and backward passes alternate."""
    warm_up = min(stages - 1 - stage, microbatches)
    passes = [(Kind.FORWARD, index) for index in range(warm_up)]
    for index in range(microbatches):
        passes += [(Kind.FORWARD, index + warm_up)] if index + warm_up < microbatches else []
        passes.append((Kind.BACKWARD, index))
    return passes


def small_panels(lab: Lab, claims: Mapping[str, Claim]) -> Sequence[FigurePanel]:
    tables = {system: table(system) for system in ASYNCHRONOUS}
    peaks = {system: [float(ledger.peak) for ledger in each] for system, each in tables.items()}
    paper = {system: [_printed(claims, system, stage) for stage in range(DEPTH)] for system in ASYNCHRONOUS}
    late = {
        f"{system}, {kind.name.lower()}": [staleness(ledger, kind) for ledger in each]
        for system, each in tables.items()
        for kind in PASSES
    }
    predicted = {
        f"{system}, {kind.name.lower()}": [steps_ahead(ledger, kind) for ledger in tables[system]]
        for system in ("spectrain", "pipeoptim")
        for kind in PASSES
    }
    network = GNMT()
    weights = [4 * sum(network.shapes()[i].parameters for i in part) / 2**20 for part in divide(network, DEPTH, "cost")]
    sizes = {name: [c * w for c, w in zip(copies, weights, strict=True)] for name, copies in peaks.items()}
    return [
        _panel("copies of a stage's weights", "version", peaks, "weight versions", paper, table=True),
        _panel("updates that weights lack when a pass reads them", "update", late, "staleness", table=True),
        _panel("Weights of GNMT-8 in single precision, with their copies", "MiB", sizes, "memory"),
        _panel("Updates that a pass predicts ahead", "update", predicted, "prediction distance"),
    ]


def _panel(
    title: str,
    unit: str,
    ours: Mapping[str, Sequence[float]],
    quantity: str,
    paper: Mapping[str, Sequence[float]] | None = None,
    *,
    table: bool = False,
) -> FigurePanel:
    """Panel over the stages; `table` marks it as part of Table II."""
    return FigurePanel(
        title,
        unit,
        [f"stage {stage}" for stage in range(DEPTH)],
        ours,
        paper or {},
        axis="stage",
        quantity=quantity,
        evidence="derived",
        figure="Table II" if table else "",
        publication="PipeOptim" if table else "",
    )


def _printed(claims: Mapping[str, Claim], system: str, stage: int) -> float:
    """Printed copies of a stage's weights in Table II; nan in blind mode."""
    claim = claims.get(f"pipeoptim.table2.{system}.weights_memory")
    return evaluate(claim.expression, {"D": DEPTH, "rank": stage, "M": 1}) if claim and claim.expression else NONE


# -- orders ----------------------------------------------------------------------------------------------------------


def bubble(question: Question, source: Any) -> tuple[Cases, str]:
    stages, epoch = int(question.setting["pipeline_stages"]), int(question.setting["mini_batches"])
    configured = systems.configured("pipedream", stages)
    slots = check(configured.schedule, stages, FlushInterval(0, epoch, configured.every, 0)).slots
    warm = [s.end for s in slots if s.op.kind is Kind.FORWARD and s.op.index < stages - 1 - s.op.stage]
    last = [s.end for s in slots if s.op == Op(0, Kind.FORWARD, epoch - 1)]
    start, end = max(warm), last[0]
    busy = sum(max(0.0, min(s.end, end) - max(s.start, start)) for s in slots)
    note = f"an epoch of {epoch} mini-batches; all idle time is the wait for the first backward passes"
    return [[100 * (1 - busy / (stages * (end - start)))]], note


def naive(question: Question, source: Any) -> tuple[Cases, str]:
    """Start times of the naive order (one pass at a time, down the stages and back) and of the schedule."""
    checked = check(systems.configured("gpipe", DEPTH).schedule, DEPTH, FlushInterval(0, 3, 1, 0))
    starts = {slot.op: slot.start for slot in checked.slots if slot.op.kind in PASSES}
    clock, cases = 0.0, []
    for index in range(3):
        down = [(Op(stage, Kind.FORWARD, index), 1.0) for stage in range(DEPTH)]
        back = [(Op(stage, Kind.BACKWARD, index), 2.0) for stage in reversed(range(DEPTH))]
        for op, units in (*down, *back):
            cases.append([clock, starts.pop(op)])
            clock += units
    assert not starts
    return cases, f"three mini-batches on {DEPTH} stages, passes of 1 and 2 units"


def schedule(question: Question, source: Any, *, system: str) -> tuple[Cases, str]:
    cases = []
    for stages in (DEPTH, 2, 8):
        length, configured = 3 * stages, systems.configured(system, stages)
        checked = check(configured.schedule, stages, FlushInterval(0, length, configured.every, 0))
        for stage in range(stages):
            passes = [(op.kind, op.index) for op in checked.order(stage) if op.kind in PASSES]
            places = {op: place for place, op in enumerate(passes)}
            cases += [[place, places[op]] for place, op in enumerate(by_definition(stages, stage, length))]
    note = "1F1B by definition and the configured schedule, without updates; 4, 2 and 8 stages"
    return distinct_cases(cases), note


def updates_between(question: Question, source: Any) -> tuple[Cases, str]:
    setting = question.setting
    gaps = ordered(int(setting["pipeline_stages"]), EPOCH).gaps[int(setting["stage"])]
    return [[gaps[int(setting["minibatch"]) - 1]]], "updates between the two passes, counted by the checker"


def version_difference(question: Question, source: Any) -> tuple[Cases, str]:
    values = [_predicted(int(point["D"]), int(point["rank"])) for point in question.points]
    return [values], "updates that a steady forward pass predicts under the configured policy, from ledgers"


def figure_1e(question: Question, source: Any) -> tuple[Cases, str]:
    setting = question.setting
    predicted = _predicted(int(setting["pipeline_stages"]), int(setting["stage"]))
    return [[predicted]], "updates that a steady forward pass predicts under the configured policy, from ledgers"


def _predicted(stages: int, stage: int) -> float:
    return steps_ahead(table("pipeoptim", stages)[stage], Kind.FORWARD)


# -- versions --------------------------------------------------------------------------------------------------------


def forward_version(question: Question, source: Any) -> tuple[Cases, str]:
    """Version of a forward pass. The paper counts versions and mini-batches from 1, the ledger from 0."""
    values = []
    for point in question.points:
        ledger = table("pipedream", int(point["D"]))[int(point["rank"])]
        values.append(reads(ledger, int(point["minibatch"]) - 1, Kind.FORWARD).version + 1)
    return [values], "the version that the forward pass reads, from ledgers"


def inconsistent(question: Question, source: Any) -> tuple[Cases, str]:
    values = []
    for point in question.points:
        ledger = ledgers(Latest("recompute"), int(point["D"]))[int(point["rank"])]
        values.append(common_value([float(first.version != second.version) for first, second in pairs(ledger)]))
    return [values], "both passes read the newest version, from ledgers"


def stash_versions(question: Question, source: Any) -> tuple[Cases, str]:
    values = [table("pipedream", int(p["D"]))[int(p["rank"])].peak for p in question.points]
    return [values], "peak number of live versions, from ledgers"


def double_versions(question: Question, source: Any) -> tuple[Cases, str]:
    return [[ledger.peak] for ledger in table("pipedream_2bw")], "peak number of live versions per stage"


def two_versions(question: Question, source: Any) -> tuple[Cases, str]:
    return [[ledger.peak] for ledger in table("pipeoptim")], "peak number of live copies per stage"


def consistent_but_stale(question: Question, source: Any) -> tuple[Cases, str]:
    cases = []
    for kind in PASSES:
        tables = [(table("pipedream", int(p["D"])), int(p["rank"])) for p in question.points]
        cases.append([staleness(each[rank], kind) for each, rank in tables])
    return cases, "updates missing from the version of steady forward and backward passes, from ledgers"


def stash_stale(question: Question, source: Any) -> tuple[Cases, str]:
    tables = [(table("pipedream", int(p["D"])), int(p["rank"])) for p in question.points]
    return [
        [staleness(each[rank], Kind.FORWARD) for each, rank in tables]
    ], "updates missing in steady forward passes, from ledgers"


def double_stale(question: Question, source: Any) -> tuple[Cases, str]:
    (serial,) = ledgers(Latest("recompute"), 1)
    system = "pipedream_2bw"
    cases = [[staleness(serial, kind), staleness(ledger, kind)] for ledger in table(system) for kind in PASSES]
    return cases, "updates missing in steady forward and backward passes per stage, from ledgers"


def backward_fresh(question: Question, source: Any) -> tuple[Cases, str]:
    (serial,) = ledgers(Latest("recompute"), 1)
    stages = table("pipeoptim", int(question.setting["pipeline_stages"]))
    read = [reads(ledger, 4, Kind.BACKWARD) for ledger in (serial, *stages)]
    values = [each.version + each.predict_steps + 1 for each in read]
    return [
        values
    ], "version of the backward pass of mini-batch 5, predicted updates included, counted from 1, from ledgers"


def last_stage(question: Question, source: Any, *, depths: Sequence[int]) -> tuple[Cases, str]:
    ledgers = [table("pipeoptim", depth)[-1] for depth in depths]
    counts = [[sum(entry.read.predict_steps > 0 for entry in ledger.entries)] for ledger in ledgers]
    return counts, "passes of an epoch that read predicted weights, one case per depth"


def predictions_made(question: Question, source: Any, *, system: str) -> tuple[Cases, str]:
    """Predictions per steady mini-batch and stage, without the last stage, where PipeOptim does not predict."""
    counts = [predictions(each) for each in table(system)]
    counts_text = ", ".join(f"{each:g}" for each in counts)
    return [[each] for each in counts[:-1]], f"every stage but the last, from ledgers; on all stages {counts_text}"


def stashing(question: Question, source: Any, *, system: str) -> tuple[Cases, str]:
    version_pairs = [pair for ledger in table(system) for pair in pairs(ledger, steady=False)]
    cases = [[first.version, first.version + first.predict_steps, second.version] for first, second in version_pairs]
    return distinct_cases(cases), "versions read by both passes of every mini-batch on every stage, from ledgers"


def consistent(question: Question, source: Any, *, system: str) -> tuple[Cases, str]:
    cases = [[first.version, second.version] for each in table(system) for first, second in pairs(each)]
    return distinct_cases(cases), "versions read by both passes of every steady mini-batch on every stage, from ledgers"


def aimed(question: Question, source: Any) -> tuple[Cases, str]:
    version_pairs = [pair for ledger in table("pipeoptim") for pair in pairs(ledger)]
    cases = [
        [first.version + first.predict_steps, second.version + second.predict_steps] for first, second in version_pairs
    ]
    return distinct_cases(
        cases
    ), "versions of steady mini-batches on every stage, from ledgers; while the pipeline fills, s is too large"


def weights_memory(question: Question, source: Any, *, system: str) -> tuple[Cases, str]:
    values = [table(system, int(p["D"]))[int(p["rank"])].peak * p["M"] for p in question.points]
    return [values], "peak number of live copies, from ledgers, times the bytes of one"
