"""Agreement of the two accounts of a GPT's memory: block by block, and layer by layer.

Both describe a pipeline in mixed precision with Adam that saves every activation and drains. Every quantity that
follows from the model states and the schedule is equal. The saved bytes of one microbatch differ: blocks count the
papers' kernels (Korthikanti et al. 2022), and layers count PyTorch's kernels, which the engine runs. Per
sequence of s tokens, a hidden width of h, a heads and v words:

    block             34 s h + 5 a s^2, with scores and dropout masks            32 s h + 2 (4 + a) s, attention fused
    end of a stage    nothing                                                    2 s h: the output, until its gradient
    norm and head     4 s v of log-probabilities                                 and 4 s h + 4 s of the norm

On a single stage a tied head shares the embedding's matrix in blocks, as Megatron does. Layers count it twice, as the
engine allocates it (law 4).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from baselines.gpipe import GPipe
from suite.core.grid import Grid
from suite.core.protocols import Schedule
from suite.memory import resident
from suite.schedule import MessageDriven, OneFOneB
from suite.simulate.block_model import MOMENTS, SimulationPlan
from suite.simulate.layer_model import LayerPlan
from suite.workload import Transformer
from tests.support.modelled import TINY, system

SHAPES = [TINY, replace(TINY, tied=False), Transformer(layers=6, hidden=16, heads=4, sequence=8, vocabulary=100)]


def both(shape: Transformer, schedule: Schedule, grid: Grid) -> tuple[SimulationPlan, LayerPlan]:
    """Both models with eight microbatches of two sequences on each replica."""
    described = system(schedule=schedule, activation_checkpointing="none")
    batch = 16 * grid.data
    blocks = SimulationPlan(shape, described, grid, batch, 2)
    return blocks, LayerPlan(shape, described, grid, batch, 2, resident, MOMENTS, half="float16", split="even")


@pytest.mark.parametrize("shape", SHAPES, ids=["tied", "untied", "larger"])
@pytest.mark.parametrize("schedule", [OneFOneB(), MessageDriven(), GPipe()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("grid", [Grid(), Grid(inter=2), Grid(inter=4), Grid(data=2, inter=3)], ids=str)
def test_accounts_agree_on_all_but_one_microbatch(shape: Transformer, schedule: Schedule, grid: Grid) -> None:
    """Equal: states, microbatches in flight, waiting messages, versions, reduction, and that the pipeline drains."""
    blocks, layers = both(shape, schedule, grid)
    for stage in range(grid.inter):
        one, other = blocks.budget(stage), layers.budget(stage)
        twice = shape.head().tied if grid.inter == 1 else 0
        assert blocks.entries(stage) + twice == layers.entries(stage)
        assert twice or one.layout == other.layout
        other = replace(other, layout=one.layout, activations=one.activations, working=one.working)
        assert one == other


@pytest.mark.parametrize("shape", SHAPES, ids=["tied", "untied", "larger"])
@pytest.mark.parametrize("inter", [1, 2, 4])
def test_accounts_differ_by_the_kernels_of_a_microbatch(shape: Transformer, inter: int) -> None:
    blocks, layers = both(shape, OneFOneB(), Grid(inter=inter))
    s, h, a = shape.sequence, shape.hidden, shape.heads
    in_a_block = (34 * s * h + 5 * a * s * s) - (32 * s * h + 2 * (4 + a) * s)
    for stage in range(inter):
        last = stage == inter - 1
        beside_blocks = -(4 * s * h + 4 * s) if last else -2 * s * h
        difference = blocks.budget(stage).activations - layers.budget(stage).activations
        assert difference == 2 * (blocks.stages[stage].blocks * in_a_block + beside_blocks)
