"""Decides what PipeOptim's claims that need no cluster come to: versions from ledgers, orders by the checker, tensors.

Table II is the account that the engine's store obeys (suite.weights.Ledger), followed in the checker's order at unit
cost. What is said of weights and optimizers is looked up in the engine's own update rules, and in a small network that
is trained by replay (engine.foreseen): torch is imported for these answers alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.analytic.question import Cases, Question, distinct
from suite.clusters.figure import NONE, Panel, figure
from suite.clusters.lab import Lab
from suite.core.claim import Claim
from suite.core.expression import evaluate
from suite.core.op import Kind, Op, Work
from suite.core.protocols import Read, WeightPolicy
from suite.schedule import OneFOneB
from suite.schedule.check import Timeline, check
from suite.weights import Latest, Ledger
from suite.weights.account import PASSES, ahead, entries, follow, one, pairs, predictions, staleness
from suite.workload.recurrent import GNMT
from suite.workload.split import divide

DEPTH = 4  # stages of every published run
EPOCH = 50_000 // 128  # mini-batches of the paper's shortest epoch between two drains: CIFAR-100 in 128 images
ASYNCHRONOUS = ("pipedream", "pipedream_2bw", "spectrain", "pipeoptim")


def every(system: str, stages: int) -> int:
    """Mini-batches per update, as conf/system has it."""
    return stages if system == "pipedream_2bw" else 1


def ordered(stages: int, microbatches: int, update_every: int = 1) -> Timeline:
    """An epoch of 1F1B without a flush, passes of 1 and 2 units."""
    return check(OneFOneB(), stages, Work(0, microbatches, update_every, 0))


def ledgers(policy: WeightPolicy, stages: int, update_every: int = 1) -> list[Ledger]:
    """Of each stage after an epoch that is long enough to be full for as many updates as there are stages."""
    work = Work(0, (2 * stages + 4) * update_every, update_every, 0)
    timeline = check(OneFOneB(), stages, work)
    return follow(policy, [timeline.order(stage) for stage in range(stages)], work)


def table(lab: Lab, system: str, stages: int = DEPTH) -> list[Ledger]:
    return ledgers(lab.policies[system], stages, every(system, stages))


def reads(ledger: Ledger, microbatch: int, kind: Kind) -> Read:
    return entries(ledger, kind, steady=False)[microbatch].read


def by_definition(stages: int, stage: int, microbatches: int) -> list[tuple[Kind, int]]:
    """1F1B in words: as many forwards as stages follow, then a forward and a backward in turn while there are both."""
    ahead = min(stages - 1 - stage, microbatches)
    found = [(Kind.FORWARD, index) for index in range(ahead)]
    for index in range(microbatches):
        found += [(Kind.FORWARD, index + ahead)] if index + ahead < microbatches else []
        found.append((Kind.BACKWARD, index))
    return found


def _panels(lab: Lab, claims: Mapping[str, Claim]) -> Sequence[Panel]:
    stages = [str(stage) for stage in range(DEPTH)]
    found = {system: table(lab, system) for system in ASYNCHRONOUS}
    held = {system: [float(ledger.peak) for ledger in each] for system, each in found.items()}
    paper = {system: [_printed(claims, system, stage) for stage in range(DEPTH)] for system in ASYNCHRONOUS}
    late = {
        f"{system}, {kind.name.lower()}": [staleness(ledger, kind) for ledger in each]
        for system, each in found.items()
        for kind in PASSES
    }
    predicted = {
        f"{system}, {kind.name.lower()}": [ahead(ledger, kind) for ledger in found[system]]
        for system in ("spectrain", "pipeoptim")
        for kind in PASSES
    }
    network = GNMT()
    weights = [4 * sum(network.shapes()[i].parameters for i in part) / 2**20 for part in divide(network, DEPTH, "cost")]
    sizes = {name: [c * w for c, w in zip(copies, weights, strict=True)] for name, copies in held.items()}
    return [
        Panel("Weights of GNMT-8 in single precision, with their copies", "MiB", stages, sizes, axis="stage"),
        Panel("Copies of a stage's weights", "version", stages, held, paper, axis="stage"),
        Panel("Updates that weights lack when a pass reads them", "update", stages, late, axis="stage"),
        Panel("Updates that a pass predicts ahead", "update", stages, predicted, axis="stage"),
    ]


def _printed(claims: Mapping[str, Claim], system: str, stage: int) -> float:
    """Copies of a stage's weights by Table II."""
    claim = claims.get(f"pipeoptim.table2.{system}.weights_memory")
    return evaluate(claim.expression, {"D": DEPTH, "rank": stage, "M": 1}) if claim else NONE


small = figure("pipeoptim_small", "Sections II to V, Tables I and II, what needs no cluster", _panels)


# -- orders ----------------------------------------------------------------------------------------------------------


@small("pipeoptim.sec2c.bubble_1f1b", unit="percent")
def bubble(question: Question, lab: Lab) -> tuple[Cases, str]:
    stages = int(question.setting["pipeline_stages"])
    slots = ordered(stages, EPOCH).slots
    warm = [s.end for s in slots if s.op.kind is Kind.FORWARD and s.op.index < stages - 1 - s.op.stage]
    last = [s.end for s in slots if s.op == Op(0, Kind.FORWARD, EPOCH - 1)]
    start, end = max(warm), last[0]
    busy = sum(max(0.0, min(s.end, end) - max(s.start, start)) for s in slots)
    note = f"an epoch of {EPOCH} mini-batches; what is idle is the wait for the first backward passes"
    return [[100 * (1 - busy / (stages * (end - start)))]], note


@small("pipeoptim.sec2c.gpipe_reduces_to_naive", unit="none")
def naive(question: Question, lab: Lab) -> tuple[Cases, str]:
    """Naive: one pass at a time, down the stages and back, mini-batch after mini-batch."""
    found = check(lab.orders["gpipe"], DEPTH, Work(0, 3, 1, 0))
    starts = {slot.op: slot.start for slot in found.slots if slot.op.kind in PASSES}
    clock, cases = 0.0, []
    for index in range(3):
        down = [(Op(stage, Kind.FORWARD, index), 1.0) for stage in range(DEPTH)]
        back = [(Op(stage, Kind.BACKWARD, index), 2.0) for stage in reversed(range(DEPTH))]
        for op, units in (*down, *back):
            cases.append([clock, starts.pop(op)])
            clock += units
    assert not starts
    return cases, f"three mini-batches on {DEPTH} stages, passes of 1 and 2 units"


@small(*(f"pipeoptim.table2.{system}.schedule" for system in ASYNCHRONOUS), unit="none")
def schedule(question: Question, lab: Lab) -> tuple[Cases, str]:
    system = question.id.split(".")[2]
    cases = []
    for stages in (DEPTH, 2, 8):
        length = 3 * stages
        found = check(lab.orders["one_f_one_b"], stages, Work(0, length, every(system, stages), 0))
        for stage in range(stages):
            passes = [(op.kind, op.index) for op in found.order(stage) if op.kind in PASSES]
            places = {op: place for place, op in enumerate(passes)}
            cases += [[place, places[op]] for place, op in enumerate(by_definition(stages, stage, length))]
    return distinct(cases), "1F1B in words beside the order that the checker runs, updates apart; 4, 2 and 8 stages"


@small("pipeoptim.sec2c.updates_between_5th", unit="update")
def between_5th(question: Question, lab: Lab) -> tuple[Cases, str]:
    told = question.setting
    gaps = ordered(int(told["pipeline_stages"]), EPOCH).gaps[int(told["stage"])]
    return [[gaps[int(told["minibatch"]) - 1]]], "updates between the two passes, counted by the checker"


@small("pipeoptim.eq4.version_difference", unit="update")
def version_difference(question: Question, lab: Lab) -> tuple[Cases, str]:
    values = [_between(int(point["D"]), int(point["rank"])) for point in question.points]
    return [values], "updates between the two passes of a mini-batch in a full pipeline, counted by the checker"


@small(*(f"pipeoptim.fig1e.version_difference.stage_{stage}" for stage in range(DEPTH)), unit="update")
def figure_1e(question: Question, lab: Lab) -> tuple[Cases, str]:
    told = question.setting
    return [[_between(int(told["pipeline_stages"]), int(told["stage"]))]], "counted by the checker in a full pipeline"


def _between(stages: int, stage: int) -> float:
    gaps = ordered(stages, 4 * stages).gaps[stage]
    return one(gaps[stages : 3 * stages])


# -- versions --------------------------------------------------------------------------------------------------------


@small("pipeoptim.sec2c.versions_used_5th", unit="version")
def used_5th(question: Question, lab: Lab) -> tuple[Cases, str]:
    """Versions and mini-batches count from 1 in the paper, from 0 here."""
    values = []
    for point in question.points:
        ledger = ledgers(Latest("recompute"), int(point["D"]))[int(point["rank"])]
        values.append(reads(ledger, int(point["minibatch"]) - 1, Kind.FORWARD).version + 1)
    return [values], "the newest version when the forward pass begins, from ledgers"


@small("pipeoptim.sec2c.inconsistency_stages", unit="none")
def inconsistent(question: Question, lab: Lab) -> tuple[Cases, str]:
    values = []
    for point in question.points:
        ledger = ledgers(Latest("recompute"), int(point["D"]))[int(point["rank"])]
        values.append(one([float(first.version != second.version) for first, second in pairs(ledger)]))
    return [values], "both passes read the newest version, from ledgers"


@small("pipeoptim.sec2c.stash_versions", unit="version")
def stash_versions(question: Question, lab: Lab) -> tuple[Cases, str]:
    values = [table(lab, "pipedream", int(p["D"]))[int(p["rank"])].peak for p in question.points]
    return [values], "versions alive at most, from ledgers"


@small("pipeoptim.sec2c.2bw_versions", unit="version")
def double_versions(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[ledger.peak] for ledger in table(lab, "pipedream_2bw")], "versions alive at most, stage by stage"


@small("pipeoptim.sec1.two_versions_at_most", unit="version")
def two_versions(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[ledger.peak] for ledger in table(lab, "pipeoptim")], "copies alive at most, stage by stage"


@small("pipeoptim.sec2c.stash_consistent_but_stale", unit="none")
def consistent_but_stale(question: Question, lab: Lab) -> tuple[Cases, str]:
    cases = []
    for kind in PASSES:
        found = [(table(lab, "pipedream", int(p["D"])), int(p["rank"])) for p in question.points]
        cases.append([staleness(each[rank], kind) for each, rank in found])
    return cases, "updates that the version lacks which a steady pass reads, forward and backward, from ledgers"


@small("pipeoptim.table2.pipedream.staleness", unit="none")
def stash_stale(question: Question, lab: Lab) -> tuple[Cases, str]:
    found = [(table(lab, "pipedream", int(p["D"])), int(p["rank"])) for p in question.points]
    return [[staleness(each[rank], Kind.FORWARD) for each, rank in found]], "of steady forward passes, from ledgers"


@small("pipeoptim.table2.pipedream_2bw.staleness", unit="none")
def double_stale(question: Question, lab: Lab) -> tuple[Cases, str]:
    (serial,) = ledgers(Latest("recompute"), 1)
    system = "pipedream_2bw"
    cases = [[staleness(serial, kind), staleness(ledger, kind)] for ledger in table(lab, system) for kind in PASSES]
    return cases, "of steady passes, forward and backward, stage by stage, from ledgers"


@small("pipeoptim.fig1e.backward_fresh", unit="version")
def backward_fresh(question: Question, lab: Lab) -> tuple[Cases, str]:
    (serial,) = ledgers(Latest("recompute"), 1)
    stages = table(lab, "pipeoptim", int(question.setting["pipeline_stages"]))
    values = [reads(ledger, 4, Kind.BACKWARD).version + 1 for ledger in (serial, *stages)]
    return [values], "the version that the backward pass of mini-batch 5 reads, from ledgers; versions count from 1"


@small("pipeoptim.sec3.last_stage_no_prediction", unit="prediction")
def last_stage(question: Question, lab: Lab) -> tuple[Cases, str]:
    ledger = table(lab, "pipeoptim", int(question.setting["pipeline_stages"]))[-1]
    return [[sum(entry.read.ahead > 0 for entry in ledger.entries)]], "passes of an epoch that read predicted weights"


@small("pipeoptim.sec3b.predictions_per_minibatch.pipeoptim", unit="prediction")
def predictions_pipeoptim(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[predictions(each)] for each in table(lab, "pipeoptim")[:-1]], "every stage but the last, from ledgers"


@small("pipeoptim.sec3b.predictions_per_minibatch.spectrain", unit="prediction")
def predictions_spectrain(question: Question, lab: Lab) -> tuple[Cases, str]:
    """Of a mini-batch on its way: by floor(k / 2) the first two stages aim their backward passes at the newest weights,
    which are no prediction, so that no single number is every stage's."""
    found = table(lab, "spectrain")
    passes = sum(any(ahead(each, kind) for each in found) for kind in PASSES)
    told = ", ".join(f"{predictions(each):g}" for each in found)
    return [[passes]], f"passes of a mini-batch in which stages predict; counted stage by stage {told}"


@small(*(f"pipeoptim.table2.{system}.effective_learning" for system in ASYNCHRONOUS[:2]), unit="none")
def stashing(question: Question, lab: Lab) -> tuple[Cases, str]:
    system = question.id.split(".")[2]
    found = [pair for ledger in table(lab, system) for pair in pairs(ledger, steady=False)]
    cases = [[first.version, first.version + first.ahead, second.version] for first, second in found]
    return distinct(cases), "versions read by both passes of every mini-batch on every stage, from ledgers"


@small(*(f"pipeoptim.table2.{system}.inconsistency" for system in ASYNCHRONOUS[:2]), unit="none")
def consistent(question: Question, lab: Lab) -> tuple[Cases, str]:
    system = question.id.split(".")[2]
    cases = [[first.version, second.version] for each in table(lab, system) for first, second in pairs(each)]
    return distinct(cases), "versions read by both passes of every steady mini-batch on every stage, from ledgers"


@small("pipeoptim.table2.pipeoptim.inconsistency", unit="none")
def aimed(question: Question, lab: Lab) -> tuple[Cases, str]:
    found = [pair for ledger in table(lab, "pipeoptim") for pair in pairs(ledger)]
    cases = [[first.version + first.ahead, second.version] for first, second in found]
    return distinct(
        cases
    ), "of every steady mini-batch on every stage, from ledgers; while the pipeline fills s is too large"


@small(*(f"pipeoptim.table2.{system}.weights_memory" for system in ASYNCHRONOUS), unit="stage weights M")
def weights_memory(question: Question, lab: Lab) -> tuple[Cases, str]:
    system = question.id.split(".")[2]
    values = [table(lab, system, int(p["D"]))[int(p["rank"])].peak * p["M"] for p in question.points]
    return [values], "copies alive at most, from ledgers, times the bytes of one"
