"""Decides what AxoNN's claims that need no cluster come to: counted from programs, layouts, shapes and half numbers.

Bytes are those of the layouts that ranks allocate exactly (law 4), orders those that ranks run, and overflow is that of
float16 itself, added as an all-reduce adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from suite.analytic.question import Cases, Question
from suite.clusters.counted import FREE
from suite.clusters.figure import Panel, figure
from suite.clusters.lab import Lab
from suite.core.claim import Claim
from suite.core.errors import Refused
from suite.core.grid import Grid
from suite.core.op import Kind, Work
from suite.core.protocols import Schedule
from suite.memory import mixed, offloaded
from suite.schedule import MessageDriven, OneFOneB
from suite.schedule.check import check
from suite.simulate.cost import Fixed
from suite.simulate.worker import simulate
from suite.workload import Transformer

ADAM = ("moment_1", "moment_2")
MICROBATCHES = 32
GPT2_SMALL = Transformer(layers=12, hidden=768, heads=12, sequence=512, vocabulary=51200)  # the usual one (A9)


def idle(schedule: Schedule, stages: int) -> float:
    """Units of time that a stage does not compute, of a batch whose passes take 1 and 2 units on every stage."""
    found = simulate(schedule, Grid(inter=stages), Work(0, MICROBATCHES, None, 0), Fixed(1.0, 2.0), FREE)
    return found.makespan - 3.0 * MICROBATCHES


def after_answers(stages: int, limit: int, microbatches: int) -> list[int]:
    """Microbatches in flight on the first stage whenever it has answered a backward pass with the next forward."""
    checked = check(MessageDriven(pipeline_limit=limit), stages, Work(0, microbatches, None, 0))
    held, seen, before = 0, [], None
    for op in checked.order(0):
        held += {Kind.FORWARD: 1, Kind.BACKWARD: -1}.get(op.kind, 0)
        if op.kind is Kind.FORWARD and before is Kind.BACKWARD:
            seen.append(held)
        before = op.kind
    return seen


def _panels(lab: Lab, claims: Mapping[str, Claim]) -> Sequence[Panel]:
    depths = (2, 4, 8, 16)
    orders: dict[str, Schedule] = {"1F1B": OneFOneB(), "message-driven": MessageDriven()}
    times = {name: [idle(order, count) for count in depths] for name, order in orders.items()}
    title = f"Idle time of a stage over G_inter, {MICROBATCHES} microbatches (t_f = 1, t_b = 2 on every stage)"
    return [Panel(title, "", [str(count) for count in depths], times, axis="G_inter")]


small = figure("axonn_small", "Sections II to VI, what needs no cluster", _panels)


@small("axonn.sec2.interlayer_idle_grows", unit="second")
def idle_grows(question: Question, lab: Lab) -> tuple[Cases, str]:
    stages = [int(term.split()[0]) for term in question.terms]
    values = [[idle(order, count) for count in stages] for order in (OneFOneB(), MessageDriven())]
    return values, "makespan less a stage's passes, 1F1B and message-driven"


@small("axonn.sec4a.pipeline_limit", unit="microbatch")
def pipeline_limit(question: Question, lab: Lab) -> tuple[Cases, str]:
    counts = [(int(point["G_inter"]), int(point["microbatches"])) for point in question.points]
    values = [check(MessageDriven(), stages, Work(0, batch, None, 0)).peak[0] for stages, batch in counts]
    return [values], "most microbatches in flight on the first stage, by the checker"


@small("axonn.sec3c.constant_in_flight", unit="microbatch")
def constant_in_flight(question: Question, lab: Lab) -> tuple[Cases, str]:
    cases = []
    for stages, limit in ((2, 2), (3, 3), (4, 6), (6, 6), (8, 12)):
        seen = after_answers(stages, limit, 4 * limit)
        cases.append([limit, min(seen), max(seen)])
    return cases, "counted on the first stage after each answer, 2 to 8 stages, limits 2 to 12"


@small("axonn.sec4b.loss_predivision", unit="none")
def loss_predivision(question: Question, lab: Lab) -> tuple[Cases, str]:
    """Gradients as large as float16 holds nearly: undivided they overflow where they meet, divided they do not."""
    cases = []
    for microbatches, replicas in ((8, 1), (16, 4), (4, 8)):
        parts = np.random.default_rng(microbatches).uniform(2e4, 3e4, (microbatches * replicas, 1000))
        whole = parts.astype(np.float16)
        with np.errstate(over="ignore"):
            undivided = np.add.reduce(whole, axis=0, dtype=np.float16)
        if np.isfinite(undivided).any():
            raise Refused("a sum that does not overflow undivided", rule="a case that needs the division")
        divided = (parts / len(parts)).astype(np.float16)
        half = np.add.reduce(divided, axis=0, dtype=np.float16)
        full = np.add.reduce(divided.astype(np.float32), axis=0)
        cases.append([int(np.isfinite(full).sum()), int(np.isfinite(half).sum())])
    return cases, "finite entries of 1000; the sums of undivided gradients all overflow"


@small("axonn.sec5b.bytes_per_parameter.total", unit="byte")
def resident_bytes(question: Question, lab: Lab) -> tuple[Cases, str]:
    values = [mixed(int(point["phi"]), ADAM).bytes() for point in question.points]
    return [values], "bytes of the layout that ranks allocate: memory=dense in mixed precision with Adam"


@small("axonn.sec5b.optimizer_footprint", unit="byte")
def footprint(question: Question, lab: Lab) -> tuple[Cases, str]:
    buckets = [int(point["bsize"]) for point in question.points]
    values = [offloaded(10 * bucket, ADAM, bucket=bucket).bytes(life="bucket") for bucket in buckets]
    return [values], "bytes that an update fetches or makes for a bucket: memory=offload"


@small("axonn.sec5b.model_state_with_offload", unit="byte")
def offloaded_bytes(question: Question, lab: Lab) -> tuple[Cases, str]:
    values = [offloaded(int(point["phi"]), ADAM, bucket=int(point["bsize"])).bytes() for point in question.points]
    return [values], "bytes of the layout that ranks allocate on the device: memory=offload"


@small(*(f"axonn.table1.parameters.{size}" for size in ("12b", "24b", "50b", "100b")), unit="parameter")
def table_1(question: Question, lab: Lab) -> tuple[Cases, str]:
    told = question.setting
    shape = Transformer(
        layers=int(told["layers"]),
        hidden=int(told["hidden"]),
        heads=int(told["heads"]),
        sequence=int(told["sequence_length"]),
        vocabulary=int(told["vocab"]),
    )
    return [[shape.parameters]], "counted layer by layer, the tied matrix once"


@small("axonn.sec6b.gpt2_small_parameters", unit="parameter")
def gpt2_small(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[GPT2_SMALL.parameters]], "12 layers, 768 wide, 51200 words, 512 positions, the tied matrix once"
