"""Program of test_fused.py, in a process of its own: Triton reads TRITON_INTERPRET when it is imported.

Prints as JSON, by rule: the largest difference of three fused steps from the rule's own steps, relative to the largest
number of each state; the losses of two engines, fused and not; and the bytes per entry of one fused step."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from suite import SGD, Adam, AdamW, Engine, RMSprop
from suite.core.protocols import UpdateRule
from suite.engine.optim import fused
from suite.engine.optim.optimizer import RuleState
from tests.support.small_engines import alone, linears, mse_loss, normal_batches

RULES: dict[str, UpdateRule] = {
    "AdamW": AdamW(0.01, weight_decay=0.1),
    "Adam": Adam(0.01, weight_decay=0.1),
    "SGD": SGD(0.1, weight_decay=0.1),
    "momentum": SGD(0.1, momentum=0.9, dampening=0.2),
    "Nesterov": SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "RMSprop": RMSprop(0.01, weight_decay=0.1),
    "RMSprop with momentum": RMSprop(0.01, momentum=0.9),
}
ENTRIES, FACTOR = fused.BLOCK + 77, 0.25


def difference(rule: UpdateRule) -> float:
    torch.manual_seed(0)
    weights = torch.randn(ENTRIES)
    states = [RuleState([weights.clone()], {name: torch.zeros(ENTRIES) for name in rule.states}) for _ in range(2)]
    for updates in range(3):
        gradient = torch.randn(ENTRIES).bfloat16()
        for state in states:
            state.updates = updates
        fused.step(rule, states[0], gradient, FACTOR)
        rule.step(states[1], gradient.float() * FACTOR)
    pairs = zip(*([state.weights[0], *state.moments.values()] for state in states), strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def engine(*, fused: bool) -> Engine:
    more: Any = {"half": "bfloat16", "fused": fused, "check_loss": 0, "world": alone()}
    return Engine(linears(4, 8, 4, dtype=torch.float32), loss=mse_loss, optimizer=AdamW(0.01), microbatch=2, **more)


class Bytes(TorchDispatchMode):
    """Counts the bytes that operations and kernels read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.moved, self.kernel = 0, fused._step

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if not func.is_view:  # an operation in place reads and writes its first operand; copy_ and zero_ only write it
            tensors = [each for each in (*args, output) if isinstance(each, torch.Tensor)]
            skipped = func._schema.name in ("aten::copy_", "aten::zero_")
            self.moved += sum(tensor.nbytes for tensor in tensors[skipped:])
        return output

    def __getitem__(self, grid: Any) -> Any:
        def launch(weights: torch.Tensor, gradient: torch.Tensor, *rest: Any) -> None:
            self.moved += gradient.nbytes + 2 * weights.nbytes
            self.moved += sum(2 * moment.nbytes for moment in {id(m): m for m in rest[:2]}.values())

        return launch


def bytes_per_entry() -> float:
    trained = engine(fused=True)
    states = trained.state.model_states
    fused._step = counter = Bytes()  # type: ignore[assignment]
    with counter:
        states.step(trained.state.update.rule)
        states.finish(stepped=True)
    fused._step = counter.kernel
    return counter.moved / states.entries


if __name__ == "__main__":
    batches = normal_batches(4, 4, 4, 4, torch.float32)
    losses = [list(engine(fused=each).train(batches)) for each in (True, False)]
    differences = {name: difference(rule) for name, rule in RULES.items()}
    print(json.dumps([differences, losses, bytes_per_entry()]))
