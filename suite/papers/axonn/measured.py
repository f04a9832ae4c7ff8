"""Answers to AxoNN's claims on bytes, messages, op orders and losses, from small runs of the engine.

Systems are built from their configs, and ranks are threads. Bytes are counted on allocated or sent tensors, never on
planned layouts."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from suite.claims.answer import Cases, Question
from suite.comm.p2p import threads
from suite.config.compose import resolve as composed
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest
from suite.core.op import Kind, Op
from suite.engine.engine import Engine
from suite.engine.random_state import drawing, initial
from suite.engine.system import EngineSystem
from suite.memory.layout import resident
from suite.papers.axonn.counts import answered
from suite.papers.equations import INSIDE
from suite.papers.measured import Flops, PassMessages, after, before, reductions, train_plainly

BEFORE, AFTER = "axonn_no_memopt", "axonn"
HALF = "precision=bf16"  # CPUs multiply bfloat16; it is as wide as the paper's float16
WIDTH = 8  # width of the square layers whose messages are counted
PAUSE = 0.002  # seconds of a pass on every later stage, so that the first stage never limits the pipeline
SUFFIX = "_bucket"  # suffix of the device buffer into which a state on the host is fetched
LARGE = (2e4, 3e4)  # range of gradients, of which four overflow float16
ENTRIES = 1000  # entries of the weight with these gradients
LOSSES = 12  # batches of the compared training


@cache
def resolve(*overrides: str) -> RunConfig:
    return composed(list(overrides))


# Engines


def build_engine(config: RunConfig, layers: Sequence[nn.Module], world: Any, **options: Any) -> Engine:
    """Engine of a config's system on other layers, with microbatches of one sample and further engine options."""
    defaults = {
        "loss": nn.functional.mse_loss,
        "optimizer": config.optimizer.build(),
        "microbatch": 1,
        "grid": config.grid.build(),
        "schedule": config.schedule.build(),
        "memory": config.memory.layout.build(),
        "half": config.precision.half,
        "bucket_numel": config.optimizer.bucket_numel,
        "buckets_per_reduction": config.optimizer.buckets_per_reduction,
        "check_loss": 0,
        "compare_batches": False,
    }
    return Engine(layers, world=world, **{**defaults, **options})


def single_rank() -> threads.LoopbackWorld:
    return threads.LoopbackWorld(threads.Hub(1), 0)


class Scaled(nn.Module):
    """Multiply a sample by the mean of one flat weight."""

    draws = False

    def __init__(self, entries: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(entries))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight.mean()


def reduced_bytes(question: Question, source: Any, *, entries: int) -> tuple[Cases, str]:
    cases = []
    for system in (BEFORE, AFTER):  # one reduction; several that overlap the optimizer steps
        config = resolve(f"system={system}", HALF, "grid.data=2", f"optimizer.bucket_numel={entries // 40}")

        def rank(world: Any) -> int:
            engine = build_engine(config, [Scaled(entries)], world)  # noqa: B023 - called within this iteration
            sizes = reductions(engine)
            engine.train_batch((torch.ones(2, 1), torch.zeros(2, 1)))
            return sum(sizes)

        cases += [[sent_bytes / entries] for sent_bytes in threads.run(2, rank)]
    return cases, f"bytes that each of two replicas reduces over {entries} parameters, at once and in chunks"


@cache
def work(gpus: int, inter: int, layers: int, samples: int) -> tuple[int, int]:
    """Flops and message bytes of an inner rank in one batch.

    The engine divides the batch among replicas and the `layers` equal layers among stages.

    Args:
        gpus: Ranks of the run.
        inter: Pipeline stages.
        layers: Layers of the network.
        samples: Samples of the batch.

    Raises:
        InvalidRequest: Replicas have different counts.
    """
    config = resolve(f"system={AFTER}", f"grid.inter={inter}", f"grid.data={gpus // inter}")

    def rank(world: Any) -> tuple[int, int] | None:
        engine = build_engine(config, [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)], world)
        messages = PassMessages.of(engine)
        with Flops() as flops:
            engine.train_batch((torch.ones(samples, WIDTH), torch.zeros(samples, WIDTH)))
        return (flops.total, sum(messages.all)) if engine.place.stage == INSIDE else None

    pairs: set[tuple[int, int]] = {pair for pair in threads.run(gpus, rank) if pair is not None}
    if len(pairs) != 1:
        raise InvalidRequest(f"replicas have {sorted(pairs)} flops and bytes", rule="replicas do the same work")
    return pairs.pop()


def _both(gpus: int, inter: int, base: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Work of an inner rank at two depths, with two samples per GPU and layers that both depths divide."""
    first, second = (work(gpus, depth, math.lcm(inter, base), 2 * gpus) for depth in (inter, base))
    return first, second


def lemma_1(gpus: int, inter: int, base: int) -> float:
    """Bytes that an inner rank sends and receives on its transport, relative to g_base stages."""
    (_, sent), (_, least) = _both(gpus, inter, base)
    return sent / least


def lemma_2(gpus: int, inter: int, layers: int, samples: int) -> float:
    """Flops that torch dispatches on an inner rank, over flops of one layer and sample."""
    return work(gpus, inter, layers, samples)[0] / (3 * 2 * WIDTH**2)  # one product forward, two backward


def theorem_3(gpus: int, inter: int, base: int) -> float:
    """Flops over message bytes of an inner rank, relative to g_base stages."""
    (flops, sent), (fewer, least) = _both(gpus, inter, base)
    return (flops / sent) / (fewer / least)


# Orders


class Slow(nn.Module):
    """Linear layer with a pause of PAUSE seconds in both passes."""

    draws = False

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(PAUSE)
        output: torch.Tensor = self.linear(x)
        output.register_hook(lambda _: time.sleep(PAUSE))
        return output


def first_stage(stages: int, microbatches: int, *schedule: str) -> list[Op]:
    """Passes of the first stage in the order in which its rank ran them.

    Args:
        stages: Pipeline stages.
        microbatches: Microbatches of the batch.
        schedule: Overrides of the schedule's arguments, such as "prefer=forward".
    """
    config = resolve(f"system={AFTER}", f"grid.inter={stages}", *(f"schedule.{argument}" for argument in schedule))

    def rank(world: Any) -> list[Op]:
        layers = [nn.Linear(WIDTH, WIDTH, bias=False), *(Slow() for _ in range(stages - 1))]
        engine = build_engine(config, layers, world)
        engine.train_batch((torch.ones(microbatches, WIDTH), torch.zeros(microbatches, WIDTH)))
        return [op for op, _ in engine.passes]

    order: list[Op] = threads.run(stages, rank)[0]
    return order


def max_in_flight(ops: Sequence[Op]) -> int:
    """Largest number of microbatches in flight."""
    changes = ({Kind.FORWARD: 1, Kind.BACKWARD: -1}.get(op.kind, 0) for op in ops)
    return max(accumulate(changes, initial=0))


def pipeline_limit(stages: int, microbatches: int) -> int:
    """Most microbatches in flight on the first rank, from its passes; all other ranks are slower."""
    return max_in_flight(first_stage(stages, microbatches))


def constant_in_flight(question: Question, source: Any, *, stages: Sequence[int], limits: Sequence[int]) -> Cases:
    """Microbatches in flight in the order of Algorithm 2: a forward pass follows each backward pass at once. On the
    first rank after each answered backward pass, from its passes; all other ranks are slower.
    """
    cases = []
    for count, limit in zip(stages, limits, strict=True):
        in_flight = answered(first_stage(count, 4 * limit, f"pipeline_limit={limit}", "prefer=forward"))
        cases.append([limit, min(in_flight), max(in_flight)])
    return cases


def overlap(question: Question, source: Any, *, entries: int, bucket: int, chunks: Sequence[int]) -> tuple[Cases, str]:
    """Optimizer steps during reductions: first with one reduction before the step, then with chunks of buckets."""

    def overlapped_steps(chunk: int | str) -> int:
        places = ("grid.data=2", f"optimizer.bucket_numel={bucket}", f"optimizer.buckets_per_reduction={chunk}")
        config = resolve(f"system={AFTER}", HALF, *places)

        def rank(world: Any) -> int:
            engine = build_engine(config, [Scaled(entries)], world)
            pending: set[int] = set()
            steps: list[bool] = []

            def begin(handle: Any, *_: Any) -> None:
                pending.add(id(handle))
                after(handle, "wait", lambda _: pending.discard(id(handle)))
                after(handle, "done", lambda done: pending.discard(id(handle)) if done else None)

            after(engine.state.update.data_parallel_group, "all_reduce", begin)
            before(engine.state.update.rule, "step", lambda *_: steps.append(bool(pending)))
            engine.train_batch((torch.ones(2, 1), torch.zeros(2, 1)))
            return sum(steps)

        return int(min(threads.run(2, rank)))

    cases = [[overlapped_steps("null"), overlapped_steps(chunk)] for chunk in chunks]
    chunks_text = ", ".join(map(str, chunks))
    return (
        cases,
        f"steps of {entries // bucket} that begin during a reduction; chunks of {chunks_text} buckets",
    )


# Losses and gradients


class Weighted(nn.Module):
    """Scalar product of a sample and a weight, so that the gradient of the weight is the sample."""

    draws = False

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ENTRIES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).sum(1)


def finite_entries(microbatches: int, replicas: int, *, loss_factor: float = 1.0) -> int:
    """Finite entries of a float16 gradient summed over microbatches and replicas, for a scaled loss."""

    def loss(outputs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return outputs.mean() * loss_factor

    samples = microbatches * replicas
    inputs = torch.rand(samples, ENTRIES, generator=torch.Generator().manual_seed(samples))
    inputs = LARGE[0] + (LARGE[1] - LARGE[0]) * inputs
    config = resolve(f"system={AFTER}", f"grid.data={replicas}")

    def rank(world: Any) -> int:
        engine = build_engine(config, [Weighted()], world, loss=loss, half="float16", memory=resident)
        (gradient,) = engine.gradients((inputs, torch.zeros(samples)))
        return int(torch.isfinite(gradient).sum())

    return int(min(threads.run(replicas, rank)))


def loss_predivision(question: Question, source: Any, *, microbatches: Sequence[int], replicas: Sequence[int]) -> Cases:
    """All entries, then finite entries after the engine's reduction; all overflow without the division."""
    cases = []
    for count, copies in zip(microbatches, replicas, strict=True):
        if undivided := finite_entries(count, copies, loss_factor=count * copies):
            raise InvalidRequest(
                f"{undivided} entries stay finite without the division of the loss",
                rule="every entry overflows without the division",
            )
        cases.append([ENTRIES, finite_entries(count, copies)])
    return cases


def loss_curves(question: Question, source: Any, *, inter: int, data: int) -> tuple[Cases, str]:
    """Losses of plain PyTorch on whole batches and of the engine on a grid, from the same initial weights."""
    small = ("model.shape.hidden=32", "model.shape.sequence=16", "data.source.limit_bytes=200000")
    places = (f"grid.inter={inter}", f"grid.data={data}", f"batch.size={2 * data}", "batch.microbatch=1")
    config = resolve(f"system={AFTER}", *small, *places, "optimizer.bucket_numel=5000")
    settings, shape, text = (
        EngineSystem.engine_arguments(config),
        config.model.shape.build(),
        config.data.source.build(),
    )
    with drawing(*initial(0, 0)):
        initial_layers = [make() for make in settings["model"]]
    batches = [
        tuple(torch.from_numpy(part) for part in text.batch(number, size=2 * data, seed=0, shape=shape))
        for number in range(LOSSES)
    ]
    reference = in_pytorch(
        copy.deepcopy(initial_layers), settings["tied"], settings["loss"], settings["optimizer"], batches
    )

    def rank(world: Any) -> list[float]:
        engine = Engine(**{**settings, "model": copy.deepcopy(initial_layers)}, world=world)
        return [engine.train_batch(batch) for batch in batches]

    ours = threads.run(inter * data, rank)[0]
    return list(zip(reference, ours, strict=True)), f"{LOSSES} batches, float32, states on the host in buckets of 5000"


def in_pytorch(
    layers: Sequence[nn.Module],
    ties: Sequence[tuple[int, str, int, str]],
    loss: Callable[..., torch.Tensor],
    rule: Any,
    batches: Sequence[tuple[torch.Tensor, ...]],
) -> list[float]:
    """Losses of the same training in plain PyTorch."""
    for first, name, last, other in ties:
        owner, _, attribute = other.rpartition(".")
        setattr(layers[last].get_submodule(owner), attribute, layers[first].get_parameter(name))
    network = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=rule.lr, betas=(rule.beta1, rule.beta2), eps=rule.eps, weight_decay=rule.weight_decay
    )
    return train_plainly(network, optimizer, loss, batches)
