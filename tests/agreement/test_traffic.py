"""Bytes that the modelled DeepSpeed sends per batch equal the bytes of DeepSpeed's own calls.

A ring of n ranks passes (n - 1) / n of a payload once in a reduce-scatter and once in an all-gather, hence twice in an
all-reduce. A rooted reduction or a broadcast along a chain passes the same bytes, averaged over n roots.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.support.curves import config_of
from tests.support.ranks import ROOT, run_ranks
from tests.support.tools import needs

pytestmark = pytest.mark.slow("DeepSpeed on two ranks, in seven cases")
PROGRAM = Path(__file__).with_name("program_traffic.py")
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
    "zero 1, contiguous": (True, [*ZERO, "system.contiguous_gradients=true"]),
    "zero 1, no scatter": (True, [*ZERO, "system.reduce_scatter=false"]),
    "zero 1, as run": (False, ZERO),
    "stages": (True, [INTER]),
    "stages, untied": (True, [INTER, "model.shape.tied=false"]),
}


class Call(NamedTuple):
    name: str
    dtypes: list[str]
    size: int
    ranks: list[int]


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Of every case, what each rank said."""
    needs("mpiexec")
    needs("deepspeed")
    folder = tmp_path_factory.mktemp("traffic")
    jobs = [(half, config_of(["system=deepspeed_3d", *SMALL, *more]).plain()) for half, more in CASES.values()]
    (folder / "cases.json").write_text(json.dumps(jobs))
    out = run_ranks(RANKS, PROGRAM, str(folder / "cases.json"), extra={"DS_ACCELERATOR": "cpu"})
    return dict(zip(CASES, map(json.loads, out.splitlines()), strict=True))


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
        ("zero 1, contiguous", 1.5),
        ("zero 1, no scatter", 1.5),  # what it is by default: gradients are never scattered
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
    batch, shape = config.batch, config.model.shape.arguments
    message = 2 * batch.microbatch * shape["sequence"] * shape["hidden"]
    tie = Call("allreduce_", ["float16"], 2 * shape["vocabulary"] * shape["hidden"], [0, 1])
    for case, others in (("stages", [tie]), ("stages, untied", [])):
        for rank in traffic[case]:
            moved = [call for call in calls(rank) if call.name in MESSAGES]
            assert sorted(call.name for call in moved) == sorted(MESSAGES * (batch.size // batch.microbatch))
            assert {(call.size, *call.dtypes) for call in moved} == {(message, "float16")}
            assert [call for call in calls(rank) if call.name not in MESSAGES] == others
