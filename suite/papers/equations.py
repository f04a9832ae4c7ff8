"""Test of the papers' lemmas and equations by counted messages, passes and idle time.

The papers derive these formulas. Here a unit-cost simulation runs the schedules that ranks run, and the messages and
ops of an inner stage are counted from its trace. The counts depend on no machine and no fitted constant."""

from __future__ import annotations

from suite.claims.answer import Cases, Question
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, feeds
from suite.core.protocols import Schedule
from suite.schedule import MessageDriven
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


def lemma_1(question: Question, source: object) -> tuple[Cases, str]:
    points = question.integer_points()
    values = [communicated_bytes(p["gpus"], p["g_inter"]) / communicated_bytes(p["gpus"], p["g_base"]) for p in points]
    return [values], "bytes of messages of an inner stage, relative to g_base stages"


def lemma_2(question: Question, source: object) -> tuple[Cases, str]:
    points = question.integer_points()
    values = [
        p["layers"] * count_forwards(simulate_batch(p["gpus"], p["g_inter"], p["samples"])) / p["g_inter"]
        for p in points
    ]
    return [values], "forward passes of an inner stage, times its layers"


def theorem_3(question: Question, source: object) -> tuple[Cases, str]:
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


def send_time(question: Question, source: object) -> tuple[Cases, str]:
    values = []
    for point in question.points:
        gpus, stages = int(point["G"]), int(point["G_inter"])
        values.append(float(count_messages(simulate_batch(gpus, stages, int(point["B"] / point["mbs"])))))
    return [values], "messages of an inner stage, each taking the same time"
