"""Decides which values a config's own keys may have, before anything compares, adds or opens them.

What a class takes, its annotations say (suite.core.fits); here are the keys that no class takes as they are. Bounds
above are what no machine can do and a parent would spend its life on, not what is sensible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from suite.core.errors import Refused
from suite.core.fits import number

MOST_SEED = 2**32 - 1  # what every generator of random numbers takes
MOST = 1_000_000_000  # of anything that is counted
MOST_PLACES = 100_000  # ranks of a grid, which simulators list
YEAR = 366 * 86400  # seconds: what waits takes no more


@dataclass(frozen=True, slots=True)
class Kind:
    """broken: the rule that a value breaks, None where it breaks none; legal: a value that is one"""

    broken: Callable[[Any], str | None]
    legal: str

    def optional(self) -> Kind:
        """Or nothing."""

        def broken(value: Any) -> str | None:
            rule = None if value is None else self.broken(value)
            return rule and f"{rule}, or null"

        return Kind(broken, self.legal)


def kind(rule: str, legal: str, fits: Callable[[Any], bool]) -> Kind:
    return Kind(lambda value: None if fits(value) else rule, legal)


def whole(least: int, most: int = MOST, legal: int | None = None) -> Kind:
    def broken(value: Any) -> str | None:
        if not isinstance(value, int) or isinstance(value, bool):
            return "a whole number"
        if value < least:
            return f"at least {least}"
        return None if value <= most else f"at most {most}"

    return Kind(broken, str(least if legal is None else legal))


def seconds(legal: int = 120) -> Kind:
    def broken(value: Any) -> str | None:
        if not number(value) or value <= 0:
            return "more than 0 seconds"
        return None if value <= YEAR else f"at most {YEAR} seconds"

    return Kind(broken, str(legal))


def _text(value: Any) -> bool:
    """What a file system takes too: no part of a path above 255 bytes."""
    parts = value.split("/") if isinstance(value, str) else ["\0"]
    return not any("\0" in part or len(part.encode(errors="replace")) > 255 for part in parts)


TEXT = kind("text, of names of at most 255 bytes", "text", _text)
NAME = kind("text, and not empty, of names of at most 255 bytes", "text", lambda value: value != "" and _text(value))
FLAG = kind("true or false", "true", lambda value: isinstance(value, bool))
GROUP = kind("a group of keys", "", lambda value: isinstance(value, Mapping))
MADE = kind(
    "a group of keys, with a class path in _target_",
    "",
    lambda value: isinstance(value, Mapping) and isinstance(value.get("_target_"), str),
)
WORD = kind("text or a number", "text", lambda value: isinstance(value, str) or number(value))
LISTED = kind("a list", "[]", lambda value: isinstance(value, list))
TEXTS = kind("a list of text", "[]", lambda value: isinstance(value, list) and all(map(_text, value)))
RUNS = kind(
    "a list of lists of overrides", "[]", lambda value: isinstance(value, list) and not any(map(TEXTS.broken, value))
)

KINDS = {
    "seed": whole(0, MOST_SEED),
    "tag": WORD,
    "reports": NAME,
    "checkpoints": kind(
        "a whole number of blocks, auto, or null", "null", lambda v: v in (None, "auto") or whole(1).broken(v) is None
    ),
    "split": NAME,
    "batch.size": whole(1),
    "batch.microbatch": whole(1),
    **{f"grid.{axis}": whole(1, MOST_PLACES) for axis in ("data", "inter", "tensor")},
    "update.bucket": whole(1, 2**62, 16_000_000),
    "update.chunk": whole(1, legal=4).optional(),
    "update.every": whole(1).optional(),
    "update.clip": kind("above 0", "1.0", lambda value: number(value) and value > 0).optional(),
    "comm.transport": NAME,
    "comm.order": NAME,
    "comm.inline": whole(256, 2**30, 16_384),
    "comm.pair_exchange": FLAG,
    **{f"measure.{name}": whole(0, 1_000_000) for name in ("warm_up", "settle", "evaluate")},
    **{f"measure.{name}": whole(1, 1_000_000) for name in ("turns", "batches")},
    "measure.validate": NAME,
    "measure.deadline": seconds(),
    "resume.folder": NAME.optional(),
    "resume.every": whole(1),
    "resume.keep": whole(1),
    "launch.name": NAME,
    "launch.starter": NAME,
    "launch.threads": whole(1, 4096),
    "launch.binding": NAME,
    "launch.device": NAME,
    "launch.max_ranks": whole(1, MOST_PLACES),
    "launch.memory_limit": whole(1, 2**62).optional(),
    "launch.deadline": seconds(),
    "launch.grace": seconds(5),
    "launch.python_path": TEXTS,
    "launch.mpiexec": NAME.optional(),
    "model.name": NAME,
    "model.network": NAME,
    "model.dropout": kind("a share below 1", "0.0", lambda value: number(value) and 0 <= value < 1),
    "model.dtype": NAME,
    "model.shape": MADE,
    "data.name": NAME,
    "data.folder": NAME.optional(),
    "data.source": MADE,
    "precision.name": NAME,
    "precision.half": NAME.optional(),
    "precision.loss_scale": MADE.optional(),
    "pruning.name": NAME,
    "pruning.sparsity": kind("a share from 0 to below 1", "0.9", lambda value: number(value) and 0 <= value < 1),
    "pruning.what": NAME,
    "pruning.ticket": MADE.optional(),
    "memory.name": NAME,
    "memory.layout": MADE,
    **dict.fromkeys(("optimizer", "schedule", "weights", "system"), MADE),
    "system.name": NAME,
    "executor": GROUP,
    "experiment.name": NAME,
    "experiment.seconds": seconds(),
    "experiment.expect": LISTED,
    "scale.name": NAME,
    "scale.reproduce": LISTED,
}
NEEDED = (
    *("executor", "system", "system.name", "experiment.name", "experiment.seconds", "reports", "tag"),
    *("launch.device", "launch.mpiexec", "launch.python_path", "data.folder", "split", "precision.half"),
)
OF_GRAPHS = {  # read where an executor has `graphs`
    "graph.name": NAME,
    "graph.source": MADE,
    "partitioner": MADE,
    "partitioner.name": NAME,
    "exchange": MADE,
    "exchange.name": NAME,
    "exchange.oblivious": FLAG,
    "exchange.replication": whole(1, MOST_PLACES),
    "exchange.assignment": NAME,
    "exchange.form": NAME,
    "exchange.overlap": FLAG,
    "exchange.barrier": FLAG,
}


def _sources(value: Any) -> bool:
    """Folders of this code: what else there is has no part in what a run finds, and may be all of a disk."""
    listed = isinstance(value, list) and all(map(_text, value))
    return listed and all(each.split("/")[0] in ("suite", "baselines") and ".." not in each for each in value)


def _claim(value: Any) -> bool:
    """What a study of messages answers, which the record of a refused one names."""
    return (
        isinstance(value, Mapping)
        and set(value) == {"id", "terms", "least", "most"}
        and NAME.broken(value["id"]) is None
        and TEXTS.broken(value["terms"]) is None
        and all(map(number, (value["least"], value["most"])))
    )


WHERE_THERE = {  # of executors, launches and systems, not all of which have them
    "launch.exclusive": FLAG,
    "launch.submit": FLAG,
    "launch.beat": seconds(5),
    "launch.silence": seconds(60).optional(),
    "launch.host": NAME.optional(),
    "launch.mpi": NAME.optional(),
    "launch.nodes": whole(1, MOST_PLACES).optional(),
    "launch.tasks_per_node": whole(1, MOST_PLACES).optional(),
    "launch.cpus_per_task": whole(1, 4096).optional(),
    "launch.gpus_per_node": whole(0, 4096).optional(),
    "launch.dry_run": FLAG,
    "launch.time": whole(1, 1_000_000, 60),
    **{f"launch.{name}": NAME.optional() for name in ("partition", "account", "qos", "constraint")},
    "launch.array_parallelism": whole(1, 1_000_000),
    "launch.setup": TEXTS,
    "launch.extra": GROUP.optional(),
    "executor.name": NAME,
    "executor.label": TEXT,
    "executor.sources": kind("a list of folders below suite or baselines", "[suite/simulate]", _sources),
    "executor.ranks": whole(1, MOST_PLACES),
    "executor.graphs": FLAG,
    "executor.claim": kind("a claim's id, terms, least and most bytes", "null", _claim).optional(),
    "system.microbatches": whole(1).optional(),
    **{f"system.{part}": FLAG for part in ("graphs", "ordered", "streams", "prunes", "resumes", "budget", "tensor")},
    **{f"executor.{part}": NAME for part in ("_target_", "system", "prepares", "replays")},
}
DRAWN = {  # what suite.draw reads beside a run's keys
    "draw.microbatches": whole(1, 1000, 8),
    "draw.forward": whole(1, 100),
    "draw.backward": whole(1, 100, 2),
    "draw.width": whole(1, 10_000, 64),
    "draw.plan": NAME.optional(),
    **OF_GRAPHS,
}
# whatever the model: sizes of a network
SIZES = ("layers", "hidden", "heads", "sequence", "vocabulary", "image", "colours", "classes")
MOST_SIZE, MOST_LAYERS = 10_000_000, 10_000


def check_needed(config: Mapping[str, Any]) -> None:
    """Raises Refused for what even the record of a refused run is made of."""
    for path in NEEDED:
        _check(config, path, KINDS[path])
    for path, wanted in WHERE_THERE.items():
        group, _, key = path.partition(".")
        if key in config[group]:
            _check(config, path, wanted)


def check_runs(config: Mapping[str, Any]) -> None:
    """Raises Refused for an experiment whose runs are no lists of overrides, and for what decides which are made."""
    for path, wanted in (("experiment.runs", RUNS), ("rerun", NAME), ("on_error", NAME)):
        _check(config, path, wanted)


def check_kinds(config: Mapping[str, Any]) -> None:
    """Raises Refused for the first key of a resolved config that is missing or has a value of no use."""
    graphs = isinstance(config.get("executor"), Mapping) and bool(config["executor"].get("graphs"))
    check_each(config, {**KINDS, **(OF_GRAPHS if graphs else {})})
    for name in SIZES:
        if name in config["model"]["shape"]:
            _check(config, f"model.shape.{name}", whole(1, MOST_LAYERS if name == "layers" else MOST_SIZE))


def check_each(config: Mapping[str, Any], wanted: Mapping[str, Kind]) -> None:
    """Raises Refused for the first of these keys that is missing or has a value of no use."""
    for path, each in wanted.items():
        _check(config, path, each)


def _check(config: Mapping[str, Any], path: str, wanted: Kind) -> None:
    value: Any = config
    for place, key in enumerate(keys := path.split(".")):
        if not isinstance(value, Mapping):
            raise Refused(f"{'.'.join(keys[:place])}={value}", rule=f"a group of keys, {key} among them")
        if key not in value:
            raise Refused(
                f"there is no {path}",
                rule="every key of conf/config.yaml",
                legal=wanted.legal and f"{path}={wanted.legal}",
            )
        value = value[key]
    if rule := wanted.broken(value):
        raise Refused(f"{path}={value}", rule=rule, legal=wanted.legal and f"{path}={wanted.legal}")
