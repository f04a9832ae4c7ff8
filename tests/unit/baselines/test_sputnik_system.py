"""Sputnik in the engine: masked dense training on every grid, with SAMO's masks, and its refusals."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from baselines.sputnik import UNTRIED
from baselines.sputnik import system as sputnik
from baselines.sputnik.linear import SparseLinear
from baselines.sputnik.states import sparse as states
from suite.comm.p2p import threads
from suite.config.compose import composed, resolve
from suite.config.locate import locate
from suite.config.run import RunConfig
from suite.conformance.reference import SEED
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.grid import Grid
from suite.core.protocols import Missing, Ready
from suite.models import gpt
from suite.pruning import mask
from suite.runner.estimate import counts
from suite.runner.runs import freeze
from suite.workload import Transformer
from tests.support.cases import Case, text
from tests.support.configs import altered
from tests.support.drawn import cells, drawn
from tests.support.masked import MaskedLoop, random_mask
from tests.support.refusals import refused

GRIDS = [Grid(), Grid(inter=2), Grid(data=2)]
SHAPE = Transformer(3, 16, 2, 6, 11, attention_bias=False)
SMALL = [
    *("model.shape.layers=3", "model.shape.hidden=16", "model.shape.heads=2", "model.shape.sequence=6"),
    *("model.shape.attention_bias=false", "model.dropout=0", f"seed={SEED}", "batch.microbatch=2", "batch.size=8"),
]


@cache
def resolved(*overrides: str) -> RunConfig:
    return resolve(overrides)


def config_of(grid: Grid = Grid(), *overrides: str, name: str = "sputnik", **changes: Any) -> RunConfig:  # noqa: B008
    """A resolved config on a model of few entries."""
    whole = [f"system={name}", *SMALL, f"grid.inter={grid.inter}", f"grid.data={grid.data}", *overrides]
    return altered(resolved(*whole), **{"model__shape__vocabulary": 11, **changes})


def case_of(dtype: str) -> Case:
    return Case("gpt", gpt.layers(SHAPE, dtype=dtype), gpt.loss, text(SHAPE), ties=gpt.ties(SHAPE))


def arrays(batch: tuple[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
    return tuple(part.numpy() for part in batch)


def saved(folder: Path, case: Case, sparsity: float, layers: int = 9) -> tuple[Path, mask.Indices]:
    """A mask of the first `layers` of a case, and its file."""
    indices = {key: index for key, index in random_mask(case, sparsity).items() if key[0] < layers}
    sizes = {"qkv.weight": 3, "project.weight": 1, "widen.weight": 4, "narrow.weight": 4}
    mask.save(folder / "ticket", indices, {key: 256 * sizes[key[1]] for key in indices})
    return folder / "ticket", indices


def places(layer: SparseLinear) -> torch.Tensor:
    side = layer.structure.weight
    rows = torch.repeat_interleave(torch.arange(side.rows), side.offsets.diff().long())
    return rows * side.width + side.columns


@pytest.mark.parametrize(
    ("grid", "types"),
    cells(GRIDS, [("float64", None, 1e-12), ("float32", None, 1e-5), ("float32", "bfloat16", 2e-2)], n=3),
)
def test_training_is_that_of_masked_weights(grid: Grid, types: tuple[str, str | None, float], tmp_path: Path) -> None:
    dtype, half, close = types
    case = case_of(dtype)
    path, indices = saved(tmp_path, case, 0.8)
    config = config_of(
        grid,
        *("optimizer=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9", "pruning=saved", "pruning.sparsity=0.8"),
        f"pruning.ticket.path={path}",
        model__dtype=dtype,
        precision__half=half,
    )
    loop = MaskedLoop(case, grid.data, config.optimizer.build(), indices, half=half)
    batches = [case.batch(number, 4 // grid.data, grid.data) for number in range(5)]
    losses = [loop.train(batch) for batch in batches]
    assert len(set(losses)) == 5

    def rank(world: Any) -> None:
        system = sputnik.Sputnik(world, config)
        assert [system.train_batch(arrays(batch)) for batch in batches] == pytest.approx(losses, rel=close)
        for number, layer in numbered_layers(system):
            weights = dict(loop.layers[number].named_parameters())
            for name, parameter in layer.named_parameters():
                path = f"{name.removesuffix('values')}weight" if name.endswith("values") else name
                assert name.endswith("values") == ((number, path) in indices)
                assert parameter.dtype == weights[path].dtype
        system.close()

    threads.run(grid.size, rank)


def numbered_layers(system: sputnik.Sputnik) -> list[tuple[int, nn.Module]]:
    state = system.engine.state
    return list(zip(state.settings.split[system.engine.place.stage], state.stage.layers, strict=True))


@pytest.mark.parametrize("pruning", drawn(["magnitude", "random"], n=1))
def test_the_mask_is_that_of_samo(pruning: str) -> None:
    """Of the same config, on another grid: the same places, and the same weights there."""
    overrides = (f"pruning={pruning}", "pruning.sparsity=0.7")

    def dense(world: Any) -> dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]:
        config = config_of(Grid(), *overrides, name="axonn_samo")
        engine = locate(config.system.target)(world, config).engine
        return {
            (number, name): (places, parameter.detach().flatten()[places.long()])
            for number, layer in enumerate(engine.state.stage.layers)
            for name, parameter in layer.named_parameters()
            if (places := engine.state.model_states.flat.kept.get(id(parameter))) is not None
        }

    def sparse(world: Any) -> dict[tuple[int, str], SparseLinear]:
        system = sputnik.Sputnik(world, config_of(Grid(inter=2), *overrides))
        return {
            (number, f"{name}.weight"): module
            for number, layer in numbered_layers(system)
            for name, module in layer.named_modules()
            if isinstance(module, SparseLinear)
        }

    samo = threads.run(1, dense)[0]
    ours = {key: layer for stage in threads.run(2, sparse) for key, layer in stage.items()}
    assert len(samo) == 12
    assert samo.keys() == ours.keys()
    for key, (index, weights) in samo.items():
        assert torch.equal(places(ours[key]), index.long()), key
        assert torch.equal(ours[key].values.detach(), weights), key


def one(config: RunConfig) -> sputnik.Sputnik:
    return threads.run(1, lambda world: sputnik.Sputnik(world, config))[0]


def test_a_checkpoint_goes_on_bit_for_bit(tmp_path: Path) -> None:
    config = config_of(Grid(inter=2))
    batches = [arrays(case_of("float32").batch(number, 4, 1)) for number in range(4)]

    def rank(world: Any) -> None:
        first, again = (sputnik.Sputnik(world, config) for _ in range(2))
        for batch in batches[:2]:
            first.train_batch(batch)
        first.save(tmp_path)
        right = [first.train_batch(batch) for batch in batches[2:]]
        for layer in again.sparse_layers:
            layer.structure.weight.offsets.zero_()
            layer.structure.weight.refresh()
        again.load(tmp_path)
        assert all(layer.structure.weight.longest for layer in again.sparse_layers)
        assert [again.train_batch(batch) for batch in batches[2:]] == right
        for system in (first, again):
            system.close()

    threads.run(2, rank)


def test_live_bytes_are_counted_and_indices_separately() -> None:
    system = one(config_of())
    batch = arrays(case_of("float32").batch(0, 4, 1))
    loss, peak = system.memory(batch)
    assert loss == pytest.approx(one(config_of()).train_batch(batch))
    assert peak["weights"] == 4 * sum(p.numel() for p in system.engine.state.stage.layers.parameters())
    assert peak["indices"] == sum(layer.structure.bytes for layer in system.sparse_layers)


def test_useful_flops_count_kept_entries_next_to_dense_flops() -> None:
    """Flops of 8 sequences of 6 tokens with hidden size 16, in 3 blocks and 3 passes.

    Per sequence: 24 * 6 * 256 for the weights of a block, 4 * 36 * 16 for attention, 2 * 6 * 16 * 11 for the head.
    """
    config = config_of(Grid(), "pruning.sparsity=0.75")
    blocks, attention, head = 3 * 24 * 6 * 256, 3 * 4 * 36 * 16, 2 * 6 * 16 * 11
    assert counts(config)["flops_per_batch"] == 24 * (blocks + attention + head)
    assert counts(config)["useful_flops_per_batch"] == 24 * (blocks / 4 + attention + head)
    assert "useful_flops_per_batch" not in counts(config_of(name="axonn_samo"))
    notes = one(config_of(Grid(), "pruning.sparsity=0.75", precision__half="bfloat16")).facts()["notes"]
    assert notes[1:3] == [sputnik.WIDENED, UNTRIED]
    assert "880 kflop" in notes[3]


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"pruning__ticket": None, "pruning__name": "none"}, "pruning=none"),
    ({"pruning__scope": "all"}, "pruning.scope=all"),
    ({"pruning__ticket__scope": "global"}, "pruning.ticket.scope=global"),
    ({"memory__name": "samo"}, "memory=samo"),
)


def test_unsuitable_masks_and_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sputnik.Sputnik.probe(config_of()) == Ready()
    for changes, subject in REFUSED:
        with refused(Unsupported, "system", "sputnik", subject=subject):
            sputnik.Sputnik.probe(config_of(**changes))
    with refused(Unsupported, "system", "sputnik", subject="pruning=early_bird", legal="pruning=saved"):
        sputnik.Sputnik.probe(config_of(Grid(), "pruning=early_bird"))
    monkeypatch.setattr(sputnik, "find_spec", lambda name: None)
    answer = sputnik.Sputnik.probe(config_of(launch__device="cuda"))
    assert isinstance(answer, Missing)
    assert "triton" in answer.reason


def test_other_weights_are_refused_before_any_is_drawn() -> None:
    for layer, rule in (
        (nn.Sequential(nn.Conv2d(3, 4, 3)), "convolution"),
        (nn.Sequential(nn.Linear(3, 4), nn.MultiheadAttention(4, 2)), "MultiheadAttention"),
    ):
        with refused(Unsupported, "system", "sputnik", subject="of layer 7", rule=rule):
            sputnik.method_draw(None, 7, layer, sparsity=0.5, seed=0, layers=9)  # type: ignore[arg-type]


def test_a_ticket_of_another_model_is_refused(tmp_path: Path) -> None:
    deep = Transformer(5, 16, 2, 6, 11, attention_bias=False)
    case = Case("deep", gpt.layers(deep), gpt.loss, text(deep))
    for layers in (9, 5):
        path, _ = saved(tmp_path, case, 0.8, layers)
        with refused(InvalidRequest, subject="of layer 4, and this model has none"):
            one(config_of(Grid(), "pruning=saved", f"pruning.ticket.path={path}", "pruning.sparsity=0.8"))


def test_sparse_states_cover_kept_entries_only() -> None:
    of_all = states(entries=100, moments=("a", "b"), half="bfloat16")
    of_some = states(entries=160, moments=("a", "b"), half="bfloat16", kept=20, of=80)
    assert of_some.bytes() == of_all.bytes() == 2000
    with refused(Unsupported, "memory", "sparse", subject="with system=axonn_samo"):
        states(entries=160, moments=("a",), kept=20, of=80, system="axonn_samo")
    assert isinstance(freeze(composed(["system=axonn_samo", "memory=sparse"]), "").refusal, Unsupported)
    assert freeze(composed(["system=sputnik"]), "").refusal is None
