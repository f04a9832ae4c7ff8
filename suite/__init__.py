"""Public names of the suite: `from suite import Engine, Grid, AdamW` trains layers, `load_records` reads results.

The names load lazily, so that `import suite.simulate`, the command line or `load_records` loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_FACE = {
    "Engine": "suite.engine.engine",
    "Grid": "suite.core.grid",
    "SGD": "suite.engine.optim.optimizer",
    "Adam": "suite.engine.optim.optimizer",
    "AdamW": "suite.engine.optim.optimizer",
    "RMSprop": "suite.engine.optim.optimizer",
    "cross_entropy": "suite.engine.losses",
    "DynamicLossScaler": "suite.engine.optim.loss_scaler",
    "WarmupCosine": "suite.engine.optim.lr_schedule",
    "Steps": "suite.engine.optim.lr_schedule",
    "Polynomial": "suite.engine.optim.lr_schedule",
    "Replay": "suite.engine.replay.replay",
    "Predict": "suite.weights.policy",
    "Pruning": "suite.engine.pruning.settings",
    "Magnitude": "suite.pruning.magnitude",
    "EarlyBird": "suite.pruning.early_bird",
    "MessageDriven": "suite.schedule.message_driven",
    "OneFOneB": "suite.schedule.one_f_one_b",
    "load_records": "suite.report.records",
}
__all__ = list(_FACE)


def __getattr__(name: str) -> Any:
    if name in _FACE:
        return getattr(import_module(_FACE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
