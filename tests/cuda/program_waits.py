"""Program of test_waits.py, in a process of its own: autograd knows only devices that exist before its first pass.

Prints the waits of the second batch of a small GPT on the fake device, as JSON, for each argument: overrides of a
configuration, separated by blanks."""

from __future__ import annotations

import json
import sys

import torch

from suite import Engine
from suite.engine.system import EngineSystem
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


def mixes_devices() -> bool:
    """Whether a product of tensors of two devices runs."""
    with fake_device():
        try:
            torch.ones(2, 2, device="fake:0") @ torch.ones(2, 2)
        except RuntimeError:
            return False
    return True


assert not mixes_devices()
print(json.dumps([waits(*line.split()) for line in sys.argv[1:]]))
