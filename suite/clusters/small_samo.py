"""Decides what SAMO's claims that need no cluster come to: bytes of layouts, counts of programs, tensors of the engine.

Bytes are those of the layouts that ranks allocate exactly (law 4), messages and idle time those of the orders that
ranks run. What is claimed of tensors is looked up in a small network that the engine trains (engine.shown): torch is
imported for these answers alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from suite.analytic.question import Cases, Question, distinct
from suite.clusters.counted import BYTES, FREE
from suite.clusters.figure import Panel, figure
from suite.clusters.lab import Lab
from suite.core.claim import Claim
from suite.core.errors import Refused
from suite.core.grid import Grid
from suite.core.op import Kind, Work, feeds
from suite.core.trace import CATEGORY
from suite.memory import Layout, compressed, mixed
from suite.schedule import MessageDriven
from suite.simulate.cost import Fixed
from suite.simulate.plan import Plan
from suite.simulate.worker import Simulation, simulate
from suite.workload import convnet

ADAM = ("moment_1", "moment_2")
HALF = "float16"
FORWARD, BACKWARD = 1.0, 2.0  # units of time, of Figure 3
PASSES = (CATEGORY[Kind.FORWARD], CATEGORY[Kind.BACKWARD])


def layout(density: float, entries: int) -> Layout:
    """What ranks hold of `entries` weights that are all prunable, in mixed precision with Adam: memory=samo."""
    return compressed(entries, ADAM, half=HALF, kept=round(density * entries), of=entries)


def indexed(found: Layout) -> int:
    """Bytes of the compressed states that are held for ever, without their index."""
    return sum(s.bytes for s in found if s.form == "indexed" and s.life == "always" and s.kind != "indices")


def run(stages: int, microbatches: int) -> Simulation:
    work = Work(0, microbatches, None, 0)
    cost = Fixed(FORWARD, BACKWARD, BYTES)
    return simulate(MessageDriven(), Grid(inter=stages), work, cost, FREE, traced=True)


def bubbles(stages: int, microbatches: int) -> list[float]:
    """Units of time that each stage does not compute, from its spans."""
    found = run(stages, microbatches)
    busy = [0.0] * stages
    for span in found.trace:
        if span.category in PASSES:
            busy[span.rank] += span.seconds
    return [found.makespan - one for one in busy]


def messages(stages: int, microbatches: int) -> list[float]:
    """That each stage sends and receives for a microbatch."""
    counts = [0] * stages
    for span in run(stages, microbatches).trace:
        if span.op is not None and span.bytes and (fed := feeds(span.op, stages)) is not None:
            counts[span.op.stage] += 1
            counts[fed.stage] += 1
    return [count / microbatches for count in counts]


def _panels(lab: Lab, claims: Mapping[str, Claim]) -> Sequence[Panel]:
    shares = (0.0, 0.25, 0.5, 0.8, 0.9, 0.95)
    entries = 1_000_000
    told = {
        "axonn": [mixed(entries, ADAM).bytes() / entries] * len(shares),
        "axonn_samo": [layout(1 - share, entries).bytes() / entries for share in shares],
    }
    title = "Bytes of a prunable parameter's model states over sparsity, mixed precision with Adam"
    return [Panel(title, "byte", [f"{share:g}" for share in shares], told, axis="sparsity")]


small = figure("samo_small", "Sections III to VI, what needs no cluster", _panels)


# -- bytes of layouts ------------------------------------------------------------------------------------------------


@small("samo.sec3d.default_bytes.total", unit="byte")
def dense_bytes(question: Question, lab: Lab) -> tuple[Cases, str]:
    values = [mixed(int(point["phi"]), ADAM).bytes() for point in question.points]
    return [values], "bytes of the layout that ranks allocate: memory=dense in mixed precision with Adam"


@small("samo.sec3d.compressed_states", unit="byte")
def compressed_states(question: Question, lab: Lab) -> tuple[Cases, str]:
    values = [indexed(layout(point["f"], int(point["phi"]))) for point in question.points]
    return [values], "bytes of the compressed states that ranks allocate: memory=samo"


@small("samo.sec3d.index_bytes", unit="byte")
def index(question: Question, lab: Lab) -> tuple[Cases, str]:
    values = [layout(point["f"], int(point["phi"]))["index"].bytes for point in question.points]
    return [values], "bytes of the index that ranks allocate: memory=samo"


@small("samo.sec3d.theta16_bytes", unit="byte")
def theta16(question: Question, lab: Lab) -> tuple[Cases, str]:
    values = [layout(point["f"], int(point["phi"]))["half"].bytes for point in question.points]
    return [values], "bytes of the weights that passes read: memory=samo"


@small("samo.sec3d.temporary_bytes", unit="byte")
def temporary(question: Question, lab: Lab) -> tuple[Cases, str]:
    values = [layout(point["f"], int(point["phi"]))["half_copy"].bytes for point in question.points]
    return [values], "bytes that a step makes and gives back: memory=samo, where one bucket is everything"


@small("samo.eq2.samo_bytes", unit="byte")
def samo_bytes(question: Question, lab: Lab) -> tuple[Cases, str]:
    values = [layout(point["f"], int(point["phi"])).bytes() for point in question.points]
    return [values], "bytes of the layout that ranks allocate, in the step: memory=samo"


@small("samo.eq5.saving", unit="byte")
def saving(question: Question, lab: Lab) -> tuple[Cases, str]:
    values = []
    for point in question.points:
        entries = int(point["phi"])
        values.append(mixed(entries, ADAM).bytes() - layout(1 - point["p"], entries).bytes())
    return [values], "bytes of memory=dense less those of memory=samo"


# -- programs --------------------------------------------------------------------------------------------------------


@small("samo.fig3.bubble", unit="unit")
def figure_3(question: Question, lab: Lab) -> tuple[Cases, str]:
    told = question.setting
    values = bubbles(int(told["g_inter"]), int(told["microbatches"]))
    return [[value] for value in values], "makespan less a stage's passes, message-driven, stage by stage"


@small("samo.fig3.bubble_equals_passes", unit="unit")
def bubble_of_passes(question: Question, lab: Lab) -> tuple[Cases, str]:
    told = question.setting
    cases = []
    for stages, count in ((int(told["g_inter"]), int(told["microbatches"])), (2, 4), (4, 9), (8, 16)):
        passes = run(1, stages - 1).makespan
        cases += [[idle, passes] for idle in bubbles(stages, count)]
    return cases, "each stage's idle time beside that many passes on one stage; 3, 2, 4 and 8 stages"


@small("samo.sec4b.messages_per_microbatch", unit="message")
def per_microbatch(question: Question, lab: Lab) -> tuple[Cases, str]:
    """What is claimed of any GPU holds inside a pipeline (S14); the ends have one neighbour instead of two."""
    first, *inside, last = messages(5, 8)
    if (first, last) != (2, 2):
        raise Refused(f"{first:g} and {last:g} messages a microbatch at the ends", rule="two, of one neighbour (S14)")
    return [[one] for one in inside], "counted on the three stages inside five; the two ends have 2 each"


@small("samo.sec4b.microbatches_per_gpu", unit="microbatch")
def per_gpu(question: Question, lab: Lab) -> tuple[Cases, str]:
    """Forward passes of a first stage in the plan that the simulator makes of a batch, a grid and a microbatch."""
    values = []
    for point in question.points:
        batch, replicas, size = int(point["B"]), int(point["G_data"]), int(point["mbs"])
        plan = Plan(
            lab.shapes["gpt3_xl"], lab.systems["axonn"], Grid(inter=3, data=replicas), batch=batch, microbatch=size
        )
        found = simulate(MessageDriven(), Grid(inter=3), plan.work, Fixed(FORWARD, BACKWARD, BYTES), FREE, traced=True)
        values.append(sum(span.category == PASSES[0] and span.rank == 0 for span in found.trace))
    return [values], "forward passes counted on a first stage of one replica"


# -- shapes ----------------------------------------------------------------------------------------------------------


@small("samo.table1.parameters.wideresnet_101", unit="parameter")
def wide_resnet(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[convnet.parameters(convnet.wide_resnet_101())]], "counted layer by layer"


@small("samo.table1.parameters.vgg_19", unit="parameter")
def vgg(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[convnet.parameters(convnet.vgg_19())]], "counted layer by layer"


@small(
    *(f"samo.table1.parameters.{name}" for name in ("gpt3_xl", "gpt3_2_7b", "gpt3_6_7b", "gpt3_13b")), unit="parameter"
)
def gpt(question: Question, lab: Lab) -> tuple[Cases, str]:
    return [[lab.shapes[question.setting["model"]].parameters]], "counted layer by layer, the tied matrix once"


# -- tensors ---------------------------------------------------------------------------------------------------------


@small("samo.sec3b.linear_index_saving", unit="ratio")
def linear_index(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine import shown

    pairs = [shown.index_bytes(int(point["N"]), int(point["entries"])) for point in question.points]
    return [[coordinates / ours for coordinates, ours in pairs]], "bytes of a random ticket's index, and of coordinates"


@small("samo.sec3b.linear_index_example", unit="none")
def example(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine import shown

    points = [{name: int(value) for name, value in point.items()} for point in question.points]
    return [[shown.index_of(**point) for point in points]], "the ticket of a tensor with one entry that stays"


@small("samo.sec3b.shared_index", unit="tensor")
def shared_index(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine import shown

    return [[count] for count in shown.index_tensors()], "counted in the states of a convolution and two linear layers"


@small("samo.sec3c.forward_identical", unit="none")
def forward(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine import shown

    return distinct(shown.outputs()), f"{shown.HALF} outputs of a small network after five batches"


@small("samo.sec3c.optimizer_identical", unit="none")
def optimizer(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine import shown

    return distinct(shown.updated()), f"weights of a small network after five steps of Adam, full and {shown.HALF}"


@small("samo.sec3c.layerwise_compression", unit="byte")
def layerwise(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine import shown

    return [shown.dense_gradients(count) for count in (1, 2, 4)], "counted at allocation; 1, 2 and 4 microbatches"


@small("samo.sec3c.expand_inverse", unit="none")
def inverse(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine import shown

    return distinct(shown.expanded()), "entries of tensors of one, two and four dimensions"


@small("samo.sec4.same_flops", unit="flop")
def same_flops(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine import shown

    return [shown.flops()], "counted as torch dispatches the products of a batch"


@small("samo.sec4a.allreduce_bytes", unit="byte")
def allreduce(question: Question, lab: Lab) -> tuple[Cases, str]:
    from suite.engine import shown

    values = [shown.reduced_bytes(point["f"], int(point["phi"])) for point in question.points]
    return [values], f"bytes that one of two replicas hands to its all-reduces in a batch, {shown.HALF}"
