"""The training examples equal plain PyTorch: losses within 1e-5 relative in float32 and 1e-11 in float64."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import suite
from suite.core.grid import Grid
from tests.support.drawn import cells, drawn
from tests.support.ranks import ROOT
from tests.support.scripts import example

GRIDS = [Grid(), Grid(inter=2), Grid(data=2), Grid(inter=2, data=2)]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}
MOST_CHANGED_LINES = 15
STEPS = 20  # twice the updates of the warm-up


def plain_losses(
    model: nn.Module,
    loss_of: Callable[..., torch.Tensor],
    batches: Iterable[Any],
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> list[float]:
    """Losses of a plain training loop; inputs may be keyword arguments."""
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = loss_of(model(**inputs) if isinstance(inputs, dict) else model(inputs), targets)
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses


@cache
def plain_gpt(dtype: torch.dtype, folder: Path) -> tuple[list[float], float, bytes]:
    return example("plain_gpt").main(STEPS, dtype, folder)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plain")


@pytest.mark.parametrize(("dtype", "grid"), cells(TOLERANCE, GRIDS, n=1), ids=str)
def test_gpt_equals_plain_pytorch(dtype: torch.dtype, grid: Grid, scratch: Path, tmp_path: Path) -> None:
    expected, validation, text = plain_gpt(dtype, scratch / str(dtype))
    losses, ours, written = example("train_gpt").main(STEPS, dtype, tmp_path / "ours", grid)
    assert len(losses) == STEPS
    assert losses == pytest.approx(expected, rel=TOLERANCE[dtype])
    assert ours == pytest.approx(validation, rel=TOLERANCE[dtype])
    assert written == text


def test_gpt_resumes_on_another_grid(scratch: Path, tmp_path: Path) -> None:
    expected, _, _ = plain_gpt(torch.float64, scratch / str(torch.float64))
    train = example("train_gpt").main
    first, _, _ = train(STEPS // 2, torch.float64, tmp_path / "ours", Grid(inter=2))
    rest, _, _ = train(STEPS, torch.float64, tmp_path / "ours", Grid(data=2))
    assert first + rest == pytest.approx(expected, rel=1e-11)


def changes_of_the_plain_script() -> list[str]:
    """Lines of `git diff` between the plain script and the one on a pipeline, without its head."""
    files = [f"examples/{name}.py" for name in ("plain_gpt", "train_gpt")]
    line = ["git", "diff", "--no-index", *files]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()[4:]


def test_gpt_changes_few_lines_of_the_plain_script() -> None:
    lines = changes_of_the_plain_script()
    added, removed = (sum(line.startswith(sign) for line in lines) for sign in "+-")
    assert 0 < added <= MOST_CHANGED_LINES
    assert removed > added


def test_document_shows_the_changes() -> None:
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    shown = text.partition("```diff\n")[2].partition("\n```")[0].splitlines()
    changes = changes_of_the_plain_script()
    assert [line for line in shown if line[:1] in ("+", "-")] == [line for line in changes if line[:1] in ("+", "-")]


def test_document_lists_every_public_name() -> None:
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", text.partition("## Public names")[2], re.MULTILINE)
    assert listed == suite.__all__


@pytest.mark.slow("sixty batches of images")
@pytest.mark.parametrize(("dtype", "grid"), cells(TOLERANCE, GRIDS, n=1), ids=str)
def test_image_classifier_equals_plain_pytorch(dtype: torch.dtype, grid: Grid) -> None:
    images = example("classify_images")
    model = images.make_model().to(dtype)
    optimizer = images.make_optimizer(model.parameters())
    generator = torch.Generator().manual_seed(2)
    loader = DataLoader(images.images(640, 0), batch_size=32, shuffle=True, generator=generator)
    batches = ((pixels.to(dtype), labels) for _ in range(3) for pixels, labels in loader)
    expected = plain_losses(model, cross_entropy, batches, optimizer, images.make_scheduler(optimizer))
    losses, scores = images.main(dtype=dtype, grid=grid)
    assert len(losses) == 60
    assert losses == pytest.approx(expected, rel=TOLERANCE[dtype], abs=TOLERANCE[dtype] * 1e-2)
    assert scores["accuracy"] > 0.9


@pytest.mark.slow("models of Hugging Face")
@pytest.mark.parametrize(
    ("name", "dtype", "grid"), cells(["finetune_gpt2", "finetune_llama"], TOLERANCE, GRIDS, n=1), ids=str
)
def test_model_of_hugging_face_equals_plain_pytorch(name: str, dtype: torch.dtype, grid: Grid) -> None:
    pytest.importorskip("transformers")
    script, gpt2 = example(name), example("finetune_gpt2")
    model = script.make_model("sdpa").to(dtype)  # with the mask that Hugging Face makes
    batches = map(gpt2.batch_of, range(STEPS))
    expected = plain_losses(model, gpt2.loss_of, batches, gpt2.make_optimizer(model))
    losses, _, trained = script.main(STEPS, dtype, grid)
    assert losses == pytest.approx(expected, rel=TOLERANCE[dtype])
    if name == "finetune_gpt2":
        assert trained.lm_head.weight is trained.transformer.wte.weight


@pytest.mark.parametrize("grid", drawn(GRIDS, n=1), ids=str)
def test_samo_equals_masked_training_of_plain_pytorch(grid: Grid) -> None:
    samo, dtype = example("samo_early_bird"), torch.float64
    losses, pruned_after, (dense, compressed), trained = samo.main(grid=grid, dtype=dtype)
    assert 0 < pruned_after < 60
    if grid.inter == 1:
        assert compressed < 0.5 * dense
    model = samo.make_model().to(dtype)
    masks = {name: trained[name] != 0 for name, _ in model.named_parameters()}
    kept = sum(int(mask.sum()) for mask in masks.values())
    assert 0.05 < kept / sum(weight.numel() for weight in model.parameters()) < 0.15
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number, (inputs, labels) in enumerate(samo.batches()):
        pruned = number >= pruned_after
        for name, weight in model.named_parameters():
            if pruned:
                weight.data.mul_(masks[name])
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs.to(dtype)), labels)
        loss.backward()
        for name, weight in model.named_parameters():
            if pruned and weight.grad is not None:
                weight.grad.mul_(masks[name])
        optimizer.step()
        assert losses[number] == pytest.approx(loss.item(), rel=1e-10)
