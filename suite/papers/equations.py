"""Test of the papers' lemmas and equations by counted messages, passes and idle time.

The papers derive these formulas. Here a unit-cost simulation runs the schedules that ranks run, and the messages and
ops of an inner stage are counted from its trace. The counts depend on no machine and no fitted constant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.claims.answer import Cases, Question
from suite.claims.claim import Claim
from suite.claims.cluster_runs import Lab
from suite.core.figure import FigurePanel
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, feeds
from suite.core.protocols import Schedule
from suite.schedule import MessageDriven, OneFOneB
from suite.simulate.cost.measured import Fixed
from suite.simulate.network.machine import Link
from suite.simulate.worker import NetworkModel, Simulation, simulate

INSIDE = 1  # inner stage: it has both neighbours if there are three or more stages
BYTES = 1024  # size of a message, the same at every depth (AxoNN Lemma V.1)
FREE = NetworkModel(lambda first, second: Link(0.0, 1e30))


def simulate_batch(gpus: int, inter: int, samples: int) -> Simulation:
    """Simulate one batch of `samples` microbatches of size 1 on `gpus` GPUs in pipelines of `inter` stages."""
    interval = FlushInterval(0, samples // (gpus // inter), None, 0)
    return simulate(
        MessageDriven(), Grid(data=gpus // inter, inter=inter), interval, Fixed(1.0, 2.0, BYTES), FREE, traced=True
    )


def count_messages(simulation: Simulation) -> int:
    """Messages that the inner stage sends and receives."""
    passes = [span.op for span in simulation.trace if span.op is not None and span.bytes]
    sent = sum(op.stage == INSIDE for op in passes)
    received = sum((fed := feeds(op, simulation.stages)) is not None and fed.stage == INSIDE for op in passes)
    return sent + received


def count_forwards(simulation: Simulation) -> int:
    """Forward passes of the inner stage, one per sample."""
    ops = [span.op for span in simulation.trace if span.op is not None and span.bytes > 0]
    return sum(op.kind is Kind.FORWARD and op.stage == INSIDE for op in ops)


def communicated_bytes(gpus: int, inter: int) -> int:
    """Bytes that the inner stage sends and receives with two samples per GPU."""
    return BYTES * count_messages(simulate_batch(gpus, inter, 2 * gpus))


def lemmas_panels(lab: Lab, claims: Mapping[str, Claim]) -> Sequence[FigurePanel]:
    depths = (4, 6, 12, 24)
    sent = [communicated_bytes(48, inter) for inter in depths]
    computed = [48 / inter * count_forwards(simulate_batch(48, inter, 96)) for inter in depths]
    return [
        FigurePanel(
            "Per GPU over G_inter, relative to the first: 48 GPUs, one batch",
            "ratio",
            [str(inter) for inter in depths],
            {
                "communication": [size / sent[0] for size in sent],
                "computation": [count / computed[0] for count in computed],
            },
            axis="G_inter, stages",
            quantity="relative to the first",
            evidence="derived",
        )
    ]


def lemma_1(question: Question, lab: Lab) -> tuple[Cases, str]:
    points = question.integer_points()
    values = [communicated_bytes(p["gpus"], p["g_inter"]) / communicated_bytes(p["gpus"], p["g_base"]) for p in points]
    return [values], "bytes of messages of an inner stage, relative to g_base stages"


def lemma_2(question: Question, lab: Lab) -> tuple[Cases, str]:
    points = question.integer_points()
    values = [
        p["layers"] * count_forwards(simulate_batch(p["gpus"], p["g_inter"], p["samples"])) / p["g_inter"]
        for p in points
    ]
    return [values], "forward passes of an inner stage, times its layers"


def theorem_3(question: Question, lab: Lab) -> tuple[Cases, str]:
    def ratio(gpus: int, inter: int) -> float:
        simulated = simulate_batch(gpus, inter, 2 * gpus)
        return count_forwards(simulated) / inter / count_messages(simulated)

    points = question.integer_points()
    values = [ratio(p["gpus"], p["g_inter"]) / ratio(p["gpus"], p["g_base"]) for p in points]
    return [values], "forward passes over messages of an inner stage, relative to g_base stages"


def idle_time(forward: float, backward: float, stages: int, schedule: Schedule) -> float:
    """Idle seconds of a stage if the whole model takes `forward` and `backward` seconds per microbatch."""
    passes = forward / stages, backward / stages
    simulated = simulate(schedule, Grid(inter=stages), FlushInterval(0, 2 * stages, None, 0), Fixed(*passes), FREE)
    return simulated.makespan - 2 * stages * sum(passes)


def equations_panels(lab: Lab, claims: Mapping[str, Claim]) -> Sequence[FigurePanel]:
    stages = (3, 4, 8, 16, 32)
    orders: dict[str, Schedule] = {"1F1B": OneFOneB(), "message-driven": MessageDriven()}
    times = {name: [idle_time(1.0, 2.0, count, order) for count in stages] for name, order in orders.items()}
    sent = [float(count_messages(simulate_batch(96, count, 96))) for count in (3, 4, 8, 16, 32)]
    names = [str(count) for count in stages]
    return [
        FigurePanel(
            "Bubble over G_inter (t_f = 1, t_b = 2)",
            "s",
            names,
            times,
            axis="G_inter, stages",
            quantity="bubble",
            evidence="derived",
        ),
        FigurePanel(
            "Messages of an inner GPU over G_inter, 96 GPUs, batch 96",
            "count",
            names,
            {"counted": sent},
            axis="G_inter, stages",
            quantity="messages",
            evidence="derived",
        ),
    ]


def send_time(question: Question, lab: Lab) -> tuple[Cases, str]:
    values = []
    for point in question.points:
        gpus, stages = int(point["G"]), int(point["G_inter"])
        values.append(float(count_messages(simulate_batch(gpus, stages, int(point["B"] / point["mbs"])))))
    return [values], "messages of an inner stage, each taking the same time"
