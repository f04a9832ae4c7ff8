"""Program of test_waits.py, in a process of its own: autograd knows only devices that exist before its first pass.

Prints as JSON the waits of the second batch of a small GPT on the fake device, for each argument: overrides of a
configuration, separated by blanks. Then the numbers that the host draws in the set-up of a timing run of GPT-3 2.7B."""

from __future__ import annotations

import json
import sys

import torch

from suite import Engine
from suite.engine.makers import configured
from suite.engine.pruning.settings import Pruning
from suite.engine.system import EngineSystem
from suite.pruning.random import RandomMask
from tests.support.curves import config_of
from tests.support.fake_device import fake_device


def waits(*overrides: str) -> list[str]:
    config = config_of(["system=axonn", "model=gpt_tiny", "grid.inter=1", *overrides])
    arguments = EngineSystem.engine_arguments(config)
    with fake_device() as work:
        engine = Engine(**arguments, device="fake:0")
        tokens = torch.zeros(8, config.network().sequence, dtype=torch.int64)
        engine.train_batch((tokens, tokens))
        work.clear()
        engine.train_batch((tokens, tokens))
    return work.waits


def drawn_on_host(device: str, *overrides: str) -> dict[str, int]:
    """Numbers that the host draws while GPT-3 2.7B with SAMO's states is set up, by operation."""
    samo = ["system=axonn_samo", "model=gpt3_2_7b", "precision=bf16", "pruning=random", "pruning.scope=all"]
    config = config_of([*samo, "grid.inter=1", *overrides])
    makers = configured(config.kernels, EngineSystem.layer_makers(config, config.network()), draws_on=device)
    pruning = Pruning(RandomMask(draws_on=device), 0.9, "all")
    with fake_device() as work:
        Engine(**EngineSystem.engine_arguments(config) | {"model": makers, "pruning": pruning}, device="fake:0")
    return work.drawn_on_host


def mixes_devices() -> bool:
    """Whether a product of tensors of two devices runs."""
    with fake_device():
        try:
            torch.ones(2, 2, device="fake:0") @ torch.ones(2, 2)
        except RuntimeError:
            return False
    return True


assert not mixes_devices()
found = [waits(*line.split()) for line in sys.argv[1:]]
print(json.dumps([found, drawn_on_host("fake:0"), drawn_on_host("cpu", "model.shape.layers=1")]))
