"""The papers' lemmas and equations, compared with counted messages, passes and idle time.

The papers prove the formulas. Here the schedules that ranks run are driven, and the messages and ops of an inner
stage are counted from its spans. No machine, stack or constant has a part in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.core.claim import Claim
from suite.core.grid import Grid
from suite.core.op import FlushInterval, Kind, feeds
from suite.core.protocols import Schedule
from suite.papers.common.answer import Cases, Question
from suite.papers.common.cluster_runs import Lab
from suite.papers.common.panel import Panel
from suite.schedule import MessageDriven, OneFOneB
from suite.simulate.cost.measured import Fixed
from suite.simulate.network.machine import Link
from suite.simulate.worker import NetworkModel, Simulation, simulate

INSIDE = 1  # a stage with both neighbours, of three stages or more
BYTES = 1024  # of a message: its size is the same at every depth (AxoNN Lemma V.1)
FREE = NetworkModel(lambda first, second: Link(0.0, 1e30))


def simulate_batch(gpus: int, inter: int, samples: int) -> Simulation:
    """`samples` microbatches of one on `gpus` devices in message-driven pipelines of `inter`."""
    interval = FlushInterval(0, samples // (gpus // inter), None, 0)
    return simulate(
        MessageDriven(), Grid(data=gpus // inter, inter=inter), interval, Fixed(1.0, 2.0, BYTES), FREE, traced=True
    )


def count_messages(found: Simulation) -> int:
    """That the stage inside sends and receives."""
    passes = [span.op for span in found.trace if span.op is not None and span.bytes]
    sent = sum(op.stage == INSIDE for op in passes)
    received = sum((fed := feeds(op, found.stages)) is not None and fed.stage == INSIDE for op in passes)
    return sent + received


def count_forwards(found: Simulation) -> int:
    """Samples that the stage inside computes."""
    return sum(
        s.op is not None and s.op.kind is Kind.FORWARD and s.op.stage == INSIDE and s.bytes > 0 for s in found.trace
    )


def communicated_bytes(gpus: int, inter: int) -> int:
    """Bytes of the stage inside for two samples a GPU."""
    return BYTES * count_messages(simulate_batch(gpus, inter, 2 * gpus))


def lemmas_panels(lab: Lab, claims: Mapping[str, Claim]) -> Sequence[Panel]:
    depths = (4, 6, 12, 24)
    sent = [communicated_bytes(48, inter) for inter in depths]
    computed = [48 / inter * count_forwards(simulate_batch(48, inter, 96)) for inter in depths]
    return [
        Panel(
            "Per GPU over G_inter, relative to the first: 48 GPUs, one batch",
            "ratio",
            [str(inter) for inter in depths],
            {"communication": [one / sent[0] for one in sent], "computation": [one / computed[0] for one in computed]},
            axis="G_inter, stages",
            quantity="relative to the first",
            evidence="derived",
        )
    ]


def lemma_1(question: Question, lab: Lab) -> tuple[Cases, str]:
    points = question.whole_points()
    values = [communicated_bytes(p["gpus"], p["g_inter"]) / communicated_bytes(p["gpus"], p["g_base"]) for p in points]
    return [values], "bytes counted on a stage inside, over those at g_base"


def lemma_2(question: Question, lab: Lab) -> tuple[Cases, str]:
    points = question.whole_points()
    values = [
        p["layers"] * count_forwards(simulate_batch(p["gpus"], p["g_inter"], p["samples"])) / p["g_inter"]
        for p in points
    ]
    return [values], "forward passes counted on a stage inside, times its layers"


def theorem_3(question: Question, lab: Lab) -> tuple[Cases, str]:
    def ratio(gpus: int, inter: int) -> float:
        simulated = simulate_batch(gpus, inter, 2 * gpus)
        return count_forwards(simulated) / inter / count_messages(simulated)

    points = question.whole_points()
    values = [ratio(p["gpus"], p["g_inter"]) / ratio(p["gpus"], p["g_base"]) for p in points]
    return [values], "computation over communication, both counted, over that at g_base"


def idle_time(forward: float, backward: float, stages: int, schedule: Schedule) -> float:
    """Seconds that a stage does not compute, of a model that takes `forward` and `backward` as a whole."""
    passes = forward / stages, backward / stages
    simulated = simulate(schedule, Grid(inter=stages), FlushInterval(0, 2 * stages, None, 0), Fixed(*passes), FREE)
    return simulated.makespan - 2 * stages * sum(passes)


def equations_panels(lab: Lab, claims: Mapping[str, Claim]) -> Sequence[Panel]:
    stages = (3, 4, 8, 16, 32)
    orders: dict[str, Schedule] = {"1F1B": OneFOneB(), "message-driven": MessageDriven()}
    times = {name: [idle_time(1.0, 2.0, count, order) for count in stages] for name, order in orders.items()}
    sent = [float(count_messages(simulate_batch(96, count, 96))) for count in (3, 4, 8, 16, 32)]
    names = [str(count) for count in stages]
    return [
        Panel(
            "Bubble over G_inter (t_f = 1, t_b = 2)",
            "s",
            names,
            times,
            axis="G_inter, stages",
            quantity="bubble",
            evidence="derived",
        ),
        Panel(
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
    return [values], "messages counted on a stage inside, each of the same time"
