"""A device without memory and kernels, on which a machine without a GPU runs the engine and counts what a GPU would do.

Tensors are torch's fake tensors on a backend written in Python: they have shapes, dtypes and devices, and an operation
on tensors of two devices is an error. A number that is read from the device is 1.

    with fake_device() as work:
        engine = Engine(model, device="fake:0", ...)
        engine.train_batch(batch)
    work.waits      # one line per wait of the host for the device: the operation, and where it is
    work.launches   # operations that start a kernel, by name
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from suite.comm import world
from suite.engine import flush, process_setup
from suite.engine.optim import update

ROOT = str(Path(__file__).parents[2])
_aten = torch.ops.aten


class _Backend(_DummyBackendModule):
    """Functions that torch.get_device_module gives for the device."""

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def is_initialized(self) -> bool:
        return True

    is_available = is_initialized

    def manual_seed(self, seed: int) -> None: ...

    def get_rng_state(self) -> torch.Tensor:
        return torch.empty(0)

    def set_rng_state(self, state: torch.Tensor) -> None: ...


class _Event:
    """An event of the device, which has always passed."""

    def __init__(self, device: Any = None, *, enable_timing: bool = False) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: Any) -> float:
        return 1.0


@cache
def _register() -> None:
    _setup_privateuseone_for_python_backend("fake", backend_module=_Backend())


class Work(TorchDispatchMode):
    """Work of the host with the device.

    Attributes:
        launches: Operations that start a kernel, by name.
        waits: The operation and the place of each wait.
        drawn_on_host: Random numbers that the host draws, by the name of the operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.waits: list[str] = []
        self.drawn_on_host: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        on_device = any(tensor.device.type == "fake" for tensor in tensors)
        if func is _aten._local_scalar_dense.default:
            if on_device:
                self._wait("read")
            return 1.0 if args[0].is_floating_point() else 1
        if func is _aten.equal.default:
            if on_device:
                self._wait("comparison")
            return True
        if func is _aten._pin_memory.default:
            return args[0]
        if func is _aten._to_copy.default and on_device and torch.device(kwargs.get("device") or "fake").type == "cpu":
            self._wait("copy")
        elif on_device and func.namespace == "aten" and not func.is_view:
            self.launches[str(func)] += 1
        output = func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags and output.device.type == "cpu":
            self.drawn_on_host[str(func)] += output.numel()
        return output

    def _wait(self, kind: str) -> None:
        frames = [frame for frame in traceback.extract_stack() if frame.filename.startswith(f"{ROOT}/suite")]
        self.waits.append(f"{kind} in {frames[-1].filename.removeprefix(ROOT)}:{frames[-1].lineno}" if frames else kind)

    def clear(self) -> None:
        self.launches.clear()
        self.waits.clear()


def _to(module: nn.Module, *arguments: Any, **options: Any) -> nn.Module:
    """nn.Module.to, which torch cannot do in place for fake tensors."""
    for each in module.modules():
        for name, weight in each._parameters.items():
            if weight is not None:
                moved = weight.detach().to(*arguments, **options)
                if (moved.device, moved.dtype) != (weight.device, weight.dtype):
                    each._parameters[name] = nn.Parameter(moved, weight.requires_grad)
        for name, buffer in each._buffers.items():
            each._buffers[name] = None if buffer is None else buffer.to(*arguments, **options)
    return module


@contextmanager
def fake_device() -> Iterator[Work]:
    """Context in which the device "fake:0" exists."""
    _register()
    with pytest.MonkeyPatch.context() as patch, FakeTensorMode(), Work() as work:
        for module in (world, process_setup):
            patch.setattr(module, "check_device", lambda device: None)
        for module in (update, flush):
            patch.setattr(module, "check_attached", lambda states, **options: None)  # fake tensors have no address
        patch.setattr(torch.accelerator, "set_device_index", lambda index: None)
        patch.setattr(torch, "Event", _Event)
        generator = torch.Generator()  # of a backend written in Python there is none
        patch.setattr(torch, "Generator", lambda device="cpu": generator)
        patch.setattr(nn.Module, "to", _to)
        yield work
