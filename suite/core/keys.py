"""Translation of argument names in error messages to config keys.

Code that serves both Python users and configs raises errors with argument names (`clip_norm=0.0`, `None`). Code that
checks or runs a config wraps it in `in_config_keys`, which translates them to config keys (`optimizer.clip_norm=0.0`,
`null`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import ContextDecorator
from types import TracebackType

from suite.core.errors import InvalidRequest

KEYS = {
    **{name: name for name in ("seed", "memory", "weights", "split", "schedule", "optimizer", "update_interval")},
    "activation_checkpointing": "activation_checkpointing",
    "microbatch": "batch.microbatch",
    "half": "precision.half",
    "loss_scaler": "precision.loss_scale",
    **{name: f"optimizer.{name}" for name in ("bucket_numel", "buckets_per_reduction", "clip_norm")},
    **{name: f"comm.{name}" for name in ("transport", "order")},
    "eager_bytes": "comm.eager_bytes",
    "fused": "kernels.fused",
    "device": "launch.device",
    "sparsity": "pruning.sparsity",
    "scope": "pruning.scope",
    "s": "weights.s",
    "tied": "model.shape.tied",
    "stages": "grid.inter",
    **{name: f"executor.{name}" for name in ("jitter", "stragglers", "cost")},
}
CLASSES = {
    "Grid": "grid",
    "DynamicLossScaler": "precision.loss_scale",
    "Pruning": "pruning",
    "EarlyBird": "pruning.ticket",
    "Magnitude": "pruning.ticket",
}
VALUES = {  # Python spelling of a choice -> its spelling in a config
    "half=None": "precision=full",
    'half="bfloat16"': "precision=bf16",
    'half="float16"': "precision=fp16",
    "weights=Latest()": "weights=latest",
    "memory=resident": "memory=dense",
    "memory=compressed": "memory=samo",
    "memory=partial(compressed, bucket=bucket_numel)": "memory.layout.bucket=${optimizer.bucket_numel}",
    "memory=partial(offloaded, bucket=bucket_numel)": "memory.layout.bucket=${optimizer.bucket_numel}",
    "pruning=None": "pruning=none",
    "optimizer=SGD(lr, momentum=0.9)": "optimizer=sgd optimizer.momentum=0.9",
    "tied=()": "model.shape.tied=false",
    'transport="nccl"': "comm.transport=nccl",
    'transport="mpi"': "comm.transport=mpi",
    'device="cuda"': "launch.device=cuda",
    "srun --mpi=pmix": "srun with launch.mpi=pmix",
    "mpiexec as the launcher": "launch.launcher=mpiexec",
}
_VALUE = re.compile("|".join(rf"(?<![\w.]){re.escape(value)}(?!\w)" for value in VALUES))
_CLASS = re.compile(rf"\b({'|'.join(CLASSES)})\((\w+)=((?:[^()]|\([^()]*\))*)\)")
_KEY = re.compile(rf"(?<![\w.])({'|'.join(sorted(KEYS, key=len, reverse=True))})((?:\.\w+)*)=(None\b)?")

_NAMED = re.compile(r"\bthere is no (\w+)((?:\.\w+)*) named")  # message of UnknownName


def translated(text: str) -> str:
    """Text of an error with config keys in place of argument names. Keys in the text stay unchanged."""
    text = _VALUE.sub(lambda match: VALUES[match[0]], text)
    text = _CLASS.sub(lambda match: f"{CLASSES[match[1]]}.{match[2]}={match[3]}", text)
    text = _NAMED.sub(lambda match: f"there is no {KEYS.get(match[1], match[1])}{match[2]} named", text)
    text = _KEY.sub(lambda match: f"{KEYS[match[1]]}{match[2]}={'null' if match[3] else ''}", text)
    return re.sub(r"\bor None\b", "or null", text)


class in_config_keys(ContextDecorator):
    """Context in which an InvalidRequest names config keys."""

    def __enter__(self) -> None:
        """The context has no state."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, InvalidRequest) and not error.keyed:
            error.rephrase(translated)
            error.keyed = True


class in_keys_of(ContextDecorator):
    """Context in which an InvalidRequest for an argument of a plug-in names its key: `heads=5`, `model.shape.heads=5`.

    Attributes:
        key: Key of the plug-in in the configuration.
        names: Names of the arguments of its class.
    """

    def __init__(self, key: str, names: Iterable[str]) -> None:
        self.key, self.names = key, [*names]

    def __enter__(self) -> None:
        """The context has no state."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, InvalidRequest) and self.names:
            names = "|".join(map(re.escape, self.names))

            def change(text: str) -> str:
                text = re.sub(rf"(?<![\w.])({names})=", rf"{self.key}.\1=", text)
                return re.sub(rf"\bthere is no ({names}) named", rf"there is no {self.key}.\1 named", text)

            error.rephrase(change)
            error.keyed = True
