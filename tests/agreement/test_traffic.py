"""Bytes that the modelled DeepSpeed sends per batch equal the bytes of DeepSpeed's own calls.

A ring of n ranks passes (n - 1) / n of a payload once in a reduce-scatter and once in an all-gather, hence twice in an
all-reduce. A rooted reduction or a broadcast along a chain passes the same bytes, averaged over n roots.
"""

from __future__ import annotations

import atexit
import os
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import yaml
from torch._C._distributed_c10d import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode

from baselines import deepspeed_3d
from suite.config.run import RunConfig
from suite.core.protocols import World
from suite.engine.guards.rank_consistency import tensors_in
from tests.support.curves import batch, config_of
from tests.support.ranks import ROOT, on_new_ranks
from tests.support.tools import needs

pytestmark = pytest.mark.slow("DeepSpeed on two ranks, in five cases")
SYSTEM = ROOT / "conf" / "system" / "deepspeed_3d.yaml"
RANKS = 2
PASSES = {
    "allreduce_": 2,
    "allreduce_coalesced_": 2,
    "reduce_": 1,
    "broadcast_": 1,
    "reduce_scatter_": 1,
    "_reduce_scatter_base_": 1,
    "reduce_scatter_tensor_coalesced_": 1,
    "allgather_": 1,
    "_allgather_base_": 1,
    "allgather_coalesced_": 1,
    "allgather_into_tensor_coalesced_": 1,
}
MESSAGES = ("send", "recv_")
SMALL = ["batch.size=4", "model.shape.layers=2", "model.shape.sequence=16"]
NOTES = 64  # bytes: losses, norms, whether a step overflowed

DATA, INTER = "grid.data=2", "grid.inter=2"
ZERO = [DATA, "system.zero_stage=1"]
CASES: dict[str, tuple[bool, list[str]]] = {  # whether in half precision; overrides
    "zero 0": (True, [DATA]),
    "zero 1": (True, ZERO),
    "zero 1, as run": (False, ZERO),
    "stages": (True, [INTER]),
    "stages, untied": (True, [INTER, "model.shape.tied=false"]),
}


WARM_UP = 2  # the first batch tells the neighbours shapes
HALF = {"fp16": {"enabled": True, "loss_scale": 1}}  # no step overflows, so none is left out


class Calls(TorchDispatchMode):
    """Payloads handed to process groups: name, types, bytes, ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, list[str], int, list[int]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            payloads = [list(tensors_in(argument)) for argument in args]  # what goes in, and what comes out
            dtypes = sorted({str(t.dtype).removeprefix("torch.") for payload in payloads for t in payload})
            size = max(sum(t.numel() * t.element_size() for t in payload) for payload in payloads)
            (group,) = [member for argument in args if (member := _group(argument)) is not None]
            self.made.append((func.overloadpacket.__name__, dtypes, size, dist.get_process_group_ranks(group)))
        return func(*args, **(kwargs or {}))


def _group(value: Any) -> ProcessGroup | None:
    if isinstance(value, torch.ScriptObject) and str(value._type()).endswith("ProcessGroup"):
        return ProcessGroup.unbox(value)
    return None


def count(world: Any, config: RunConfig) -> dict[str, Any]:
    system = deepspeed_3d.DeepSpeed3D(world, config)
    for number in range(WARM_UP):
        system.train_batch(batch(config, number))
    with Calls() as calls:
        system.train_batch(batch(config, WARM_UP))
    weights = list(system.engine.module.parameters())
    system.close()
    return {"entries": sum(p.numel() for p in weights), "dtype": str(weights[0].dtype), "calls": calls.made}


def count_all(world: World, cases: list[tuple[bool, RunConfig]]) -> list[dict[str, Any]]:
    """What this rank sends in a batch of each case."""
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
    from mpi4py import MPI

    # DeepSpeed refuses float16 on a CPU that has no instructions for it; torch computes it nonetheless
    CPU_Accelerator.is_fp16_supported = lambda self: True
    # threads that libraries leave to the interpreter's end abort it now and then
    atexit.register(lambda: (MPI.Finalize(), os._exit(0)))
    usual, counted = deepspeed_3d._told, []
    for half, config in cases:
        more = HALF if half else {}
        deepspeed_3d._told = lambda *given, more=more: usual(*given) | more
        counted.append(count(world, config))
    return counted


class Call(NamedTuple):
    name: str
    dtypes: list[str]
    size: int
    ranks: list[int]


@pytest.fixture(scope="module")
def traffic() -> dict[str, list[dict[str, Any]]]:
    """What each rank counted, by case."""
    needs("mpiexec")
    needs("deepspeed")
    cases = [(half, config_of(["system=deepspeed_3d", *SMALL, *more])) for half, more in CASES.values()]
    counted = on_new_ranks(RANKS, count_all, cases, extra={"DS_ACCELERATOR": "cpu"})
    return {name: [rank[number] for rank in counted] for number, name in enumerate(CASES)}


def calls(rank: dict[str, Any]) -> list[Call]:
    every = [Call(*call) for call in rank["calls"]]
    unknown = {call.name for call in every} - set(PASSES) - set(MESSAGES)
    assert not unknown, "a call that nobody has counted"
    return [call for call in every if call.size > NOTES and len(call.ranks) > 1]


def reductions(rank: dict[str, Any]) -> float:
    """Bytes that a rank sends for gradients and weights, in all-reduces of its gradients in half precision."""
    collective = [call for call in calls(rank) if call.name in PASSES]
    gradients = 2 * int(rank["entries"])
    return sum(PASSES[call.name] * call.size for call in collective) / (PASSES["allreduce_"] * gradients)


@pytest.mark.ranks
def test_modelled_reductions_are_what_deepspeed_sends(traffic: dict[str, list[dict[str, Any]]]) -> None:
    modelled = yaml.safe_load(SYSTEM.read_text())["system"]["simulation"]
    for rank in traffic[f"zero {modelled['zero_stage']}"]:
        assert rank["dtype"] == "torch.float16"
        assert modelled["allreduces_per_update"] == pytest.approx(reductions(rank), rel=1e-3), calls(rank)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("zero 0", 1.0),
        ("zero 1", 1.5),  # an all-reduce, and an all-gather of the new weights
        ("zero 1, as run", 3.0),  # in float32
    ],
)
def test_bytes_of_replicas(traffic: dict[str, list[dict[str, Any]]], case: str, expected: float) -> None:
    half, _ = CASES[case]
    for rank in traffic[case]:
        assert reductions(rank) == pytest.approx(expected, rel=1e-3), calls(rank)
        assert {tuple(call.dtypes) for call in calls(rank)} == {("float16" if half else "float32",)}


@pytest.mark.ranks
def test_messages_are_whole_and_in_half_precision(traffic: dict[str, list[dict[str, Any]]]) -> None:
    """One message per microbatch and direction, and between both ends of a tie an all-reduce of its gradient."""
    config = config_of([INTER, *SMALL])
    size, shape = config.batch, config.model.shape.arguments
    message = 2 * size.microbatch * shape["sequence"] * shape["hidden"]
    tie = Call("allreduce_", ["float16"], 2 * shape["vocabulary"] * shape["hidden"], [0, 1])
    for case, others in (("stages", [tie]), ("stages, untied", [])):
        for rank in traffic[case]:
            moved = [call for call in calls(rank) if call.name in MESSAGES]
            assert sorted(call.name for call in moved) == sorted(MESSAGES * (size.size // size.microbatch))
            assert {(call.size, *call.dtypes) for call in moved} == {(message, "float16")}
            assert [call for call in calls(rank) if call.name not in MESSAGES] == others
