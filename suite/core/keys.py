"""Translation of argument names in error messages to config keys.

Code that serves both Python users and configs raises errors with argument names (`clip_norm=0.0`, `None`). Code that
checks or runs a config wraps it in `in_config_keys`, which translates them to config keys (`optimizer.clip_norm=0.0`,
`null`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

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
_KEY = re.compile(rf"(?<![\w.])({'|'.join(sorted(KEYS, key=len, reverse=True))})((?:\.\w+)*)=(None\b)?")

_NAMED = re.compile(r"\bthere is no (\w+)((?:\.\w+)*) named")  # message of UnknownName


def translated(text: str) -> str:
    """Text of an error with config keys in place of argument names. Keys in the text stay unchanged."""
    text = _VALUE.sub(lambda match: VALUES[match[0]], text)
    text = _NAMED.sub(lambda match: f"there is no {KEYS.get(match[1], match[1])}{match[2]} named", text)
    text = _KEY.sub(lambda match: f"{KEYS[match[1]]}{match[2]}={'null' if match[3] else ''}", text)
    return re.sub(r"\bor None\b", "or null", text)


@contextmanager
def in_config_keys(key: str = "", names: Iterable[str] = ()) -> Iterator[None]:
    """Context in which an InvalidRequest names config keys.

    Args:
        key: Key of a plug-in in the configuration: `heads=5` becomes `model.shape.heads=5`.
        names: Names of the arguments of its class.
    """
    own = "|".join(map(re.escape, names))

    def change(text: str) -> str:
        text = re.sub(rf"(?<![\w.])({own})=", rf"{key}.\1=", text)
        return re.sub(rf"\bthere is no ({own}) named", rf"there is no {key}.\1 named", text)

    try:
        yield
    except InvalidRequest as error:
        if own or not error.keyed:
            error.rephrase(change if own else translated)
            error.keyed = True
        raise
