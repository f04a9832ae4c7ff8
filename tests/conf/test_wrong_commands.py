"""Wrong commands: each is refused in one sentence with its key, value, rule and a legal value, which then works."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from suite.cli.run import main
from suite.config import locate
from suite.core.errors import InvalidRequest, SuiteError
from suite.core.exit_codes import Exit
from suite.runner.labels import key_of
from suite.runner.runs import expand

LONGEST = 310  # characters of a refusal, without the user's own folder
CODE = """from dataclasses import dataclass
from suite.schedule import MessageDriven
from suite.workload import Transformer

@dataclass(frozen=True)
class Capped(MessageDriven):
    slack: int = 2

class Halves:
    pass

@dataclass(frozen=True)
class Shape(Transformer):
    experts: int = 1
"""
MODEL = """name: mine
network: suite.models.gpt
dropout: 0.0
dtype: float32
shape: {_target_: own_parts.Shape, layers: 2, hidden: 32, heads: 4, sequence: 16, vocabulary: 256}
"""

SIMULATED = "executor=simulated machine=summit model=gpt3_xl system=axonn grid.inter=4 batch.size=64"
GRAPH = "system=sparsity_aware grid.data=2"
UNTIED = "model.shape.tied=false grid.inter=2"
OWN = "launch.python_path=[{mine}]"


class Wrong(NamedTuple):
    """A wrong command. value: as typed, or the misspelled name; legal: must appear in the advice of the refusal."""

    kind: str
    words: str
    key: str
    value: str
    legal: str


WRONG = [
    # keys
    Wrong("key", "sead=3", "sead", "sead", "seed"),
    Wrong("key", "grid.iner=2", "grid.iner", "grid.iner", "grid.inter"),
    Wrong("key", "gird.inter=2", "gird.inter", "gird.inter", "grid.inter"),
    Wrong("key", "batch.sise=32", "batch.sise", "batch.sise", "batch.size"),
    Wrong(
        "key", "optimizer.bucket_nume=100", "optimizer.bucket_nume", "optimizer.bucket_nume", "optimizer.bucket_numel"
    ),
    Wrong("key", "grid.inter=2 comm.transprt=gloo", "comm.transprt", "comm.transprt", "comm.transport"),
    Wrong("key", "launch.threds=2", "launch.threds", "launch.threds", "launch.threads"),
    Wrong("key", "optimizer.lrr=0.1", "optimizer.lrr", "optimizer.lrr", "optimizer.lr"),
    Wrong("key", "measure.turn=3", "measure.turn", "measure.turn", "measure.rounds"),
    Wrong("key", f"{GRAPH} graph.source.vertexes=4096", "graph.source", "graph.source.vertexes", "vertices"),
    Wrong("key", f"{SIMULATED} machine.device_per_node=4", "machine", "device_per_node", "devices_per_node"),
    Wrong("key", "executor=check executor.tick.forward=2", "executor", "executor.tick.", "executor.ticks.forward"),
    Wrong("key", "executor=emulated executor.jiter.spread=0.1", "executor", "executor.jiter", "executor.jitter"),
    Wrong("key", "executor=replay +executor.labl=mine", "executor.labl", "executor.labl", "executor.label"),
    Wrong("key", "executor.jitter.spread=0.1", "executor.jitter.spread", "0.1", "executor=emulated"),
    # choices of a group and of a key
    Wrong("choice", "executor.kind=replya", "executor.kind", "replya", "replay"),
    Wrong("choice", "model=gpt_tinny", "model", "gpt_tinny", "gpt_tiny"),
    Wrong("choice", "system=axon", "system", "axon", "axonn"),
    Wrong("choice", "optimizer=adm", "optimizer", "adm", "adam"),
    Wrong("choice", "schedule=1f1b", "schedule", "1f1b", "one_f_one_b"),
    Wrong("choice", "precision=bf61", "precision", "bf61", "bf16"),
    Wrong("choice", "memory=offlaod", "memory", "offlaod", "offload"),
    Wrong("choice", "executor=simulate", "executor", "simulate", "simulated"),
    Wrong("choice", f"{SIMULATED} efficiency=sumit", "efficiency", "sumit", "summit"),
    Wrong("choice", f"{GRAPH} partitioner=metiss", "partitioner", "metiss", "metis"),
    Wrong("choice", "experiment=smoek", "experiment", "smoek", "smoke"),
    Wrong("choice", "model=", "model", "''", "gpt_tiny"),
    Wrong("choice", "grid.inter=2 comm.transport=infiniband", "comm.transport", "infiniband", "mpi"),
    Wrong("choice", "launch.launcher=mpirun", "launch.launcher", "mpirun", "mpiexec"),
    Wrong("choice", "measure.validate=epoch", "measure.validate", "epoch", "every_round"),
    Wrong("choice", "rerun=always", "rerun", "always", "all"),
    Wrong("choice", "grid.inter=2 split=evenly", "split", "evenly", "even"),
    Wrong("choice", "pruning=magnitude system=axonn_samo pruning.scope=every", "pruning.scope", "every", "all"),
    Wrong("choice", f"{GRAPH} exchange.assignment=random", "exchange.assignment", "random", "paper"),
    Wrong("choice", f"{GRAPH} partitioner=kahip partitioner.mode=fest", "partitioner.mode", "fest", "fast"),
    Wrong("choice", "executor=emulated executor.jitter.kind=normal", "executor.jitter", "normal", "lognormal"),
    Wrong("choice", f"{SIMULATED} executor.plan=best", "executor.plan", "best", "search"),
    # class paths
    Wrong(
        "path",
        "schedule=gpipe schedule._target_=baselines.gpipe.Gpipe",
        "schedule",
        "baselines.gpipe.Gpipe",
        "gpipe.GPipe",
    ),
    Wrong("path", "schedule=gpipe schedule._target_=GPipe", "schedule", "GPipe", "baselines.gpipe.GPipe"),
    Wrong("path", "weights._target_=suite.weights.Lates", "weights", "suite.weights.Lates", "suite.weights.Latest"),
    Wrong(
        "path",
        "system=gpipe memory.layout._target_=suite.memory.residnt",
        "memory.layout",
        "residnt",
        "suite.memory.resident",
    ),
    Wrong(
        "path",
        "optimizer=adam optimizer._target_=suite.engine.optim.optimizer.Adma",
        "optimizer",
        "suite.engine.optim.optimizer.Adma",
        "suite.engine.optim.optimizer.Adam",
    ),
    Wrong(
        "path",
        "system._target_=suite.engine.system.EngineSystm",
        "system",
        "suite.engine.system.EngineSystm",
        "suite.engine.system.EngineSystem",
    ),
    Wrong("path", "model.network=suite.models.gtp", "model.network", "suite.models.gtp", "suite.models.gpt"),
    Wrong("path", "schedule._target_=suite.weights.Latest", "schedule", "suite.weights.Latest", "schedule._target_="),
    Wrong("path", f"{OWN} schedule._target_=own_parts.Caped", "schedule", "own_parts.Caped", "own_parts.Capped"),
    Wrong("path", f"{OWN} schedule._target_=own_part.Capped", "schedule", "own_part.Capped", "own_parts.Capped"),
    # arguments of classes
    Wrong("argument", "+model.shape.layer=4", "model.shape.layer", "model.shape.layer", "model.shape.layers"),
    Wrong("argument", "optimizer=sgd +optimizer.momentm=0.9", "optimizer", "optimizer.momentm", "momentum"),
    Wrong("argument", "optimizer=sgd optimizer.momentum=high", "optimizer.momentum", "high", "optimizer.momentum="),
    Wrong("argument", "schedule=gpipe +schedule.chunks=2", "schedule", "schedule.chunks", "~schedule.chunks"),
    Wrong("argument", f"{GRAPH} partitioner=metis +partitioner.ufacter=9", "partitioner", "ufacter", "ufactor"),
    Wrong("argument", "executor=unit +executor.bathces=3", "executor.bathces", "executor.bathces", "executor.batches"),
    Wrong("argument", f"{GRAPH} graph.source.blocks=many", "graph.source.blocks", "many", "graph.source.blocks="),
    Wrong(
        "argument",
        f"{OWN} schedule._target_=own_parts.Capped +schedule.slak=3",
        "schedule.slak",
        "schedule.slak",
        "schedule.slack",
    ),
    Wrong("argument", f"{OWN} model=mine model.shape.experts=2", "model.shape", "model.shape.experts", "+"),
    Wrong("argument", f"{OWN} model=mine +model.shape.experts=two", "model.shape.experts", "two", "experts="),
    # types
    Wrong("type", "batch.size=many", "batch.size", "many", "batch.size=16"),
    Wrong("type", "grid.inter=1.5", "grid.inter", "1.5", "grid.inter=1"),
    Wrong("type", "grid.inter=2 comm.eager_bytes=16K", "comm.eager_bytes", "16K", "comm.eager_bytes=16384"),
    Wrong("type", "grid.data=2 comm.pair_exchange=maybe", "comm.pair_exchange", "maybe", "comm.pair_exchange=true"),
    Wrong("type", "launch.memory_limit=64G", "launch.memory_limit", "64G", "launch.memory_limit="),
    Wrong("type", "measure.deadline=soon", "measure.deadline", "soon", "measure.deadline="),
    Wrong("type", "optimizer.lr=fast", "optimizer.lr", "fast", "optimizer.lr=0.001"),
    Wrong("type", "model.shape.layers=six", "model.shape.layers", "six", "model.shape.layers="),
    Wrong("type", "executor=check executor.ticks.forward=1.5", "executor.ticks.forward", "1.5", "ticks.forward=1"),
    Wrong("type", "executor=emulated executor.network.latency=50us", "network.latency", "50us", "network.latency="),
    Wrong(
        "type", "executor=emulated executor.stragglers=2", "executor.stragglers", "2", "executor.stragglers={0: 1.5}"
    ),
    Wrong("type", "batch=3", "batch", "3", "batch.size=16"),
    Wrong("type", "system=deepspeed_3d system.zero_stage=abc", "system.zero_stage", "abc", "system.zero_stage=1"),
    Wrong("type", "system=torch_gpipe system.data_parallel=x", "system.data_parallel", "x", "data_parallel=flat"),
    Wrong("choice", "on_error=stp", "on_error", "stp", "on_error=stop"),
    Wrong("type", "grid.inter", "grid.inter", "grid.inter", "grid.inter="),
    Wrong("type", "system=axonn,gpipe", "system", "axonn,gpipe", "suite sweep"),
    # bounds
    Wrong("bound", "grid.inter=0", "grid.inter", "0", "grid.inter=1"),
    Wrong("bound", "batch.size=-4", "batch.size", "-4", "batch.size=16"),
    Wrong("bound", "seed=-1", "seed", "-1", "seed=0"),
    Wrong("bound", "grid.inter=2 comm.eager_bytes=-1", "comm.eager_bytes", "-1", "comm.eager_bytes=16384"),
    Wrong("bound", "launch.deadline=0", "launch.deadline", "0", "launch.deadline="),
    Wrong("bound", "system=axonn_samo pruning.sparsity=90", "pruning.sparsity", "90", "pruning.sparsity=0.9"),
    Wrong("bound", "executor=emulated executor.jitter.spread=-1", "executor.jitter.spread", "-1", "spread=0.1"),
    Wrong("bound", "executor=emulated executor.cost.forward=-0.1", "executor.cost.forward", "-0.1", "forward=0"),
    Wrong("bound", f"{SIMULATED} machine.memory=-1", "machine.memory", "-1", "machine.memory=1.0e+9"),
    Wrong("bound", f"{SIMULATED} machine.within.bandwidth=-1", "machine.within.bandwidth", "-1", "machine.within.band"),
    Wrong("bound", "optimizer=sgd optimizer.momentum=-0.5", "optimizer.momentum", "-0.5", "optimizer.momentum=0.0"),
    Wrong("bound", "optimizer=adam optimizer.beta2=1.0", "optimizer.beta2", "1.0", "optimizer.beta2=0.999"),
    Wrong("bound", "optimizer=rmsprop optimizer.eps=-1", "optimizer.eps", "-1", "optimizer.eps=1e-08"),
    Wrong("bound", f"{GRAPH} exchange.replication=0", "exchange.replication", "0", "exchange.replication=1"),
    Wrong("bound", f"{GRAPH} graph.source.vertices=-5", "graph.source.vertices", "-5", "graph.source.vertices="),
    Wrong("bound", "executor=messages grid.data=2 executor.sizes=[8,8]", "executor.sizes", "[8, 8]", "[8,1024,65536]"),
    # rules between keys
    Wrong("rule", "grid.data=3", "grid.data", "3", "batch.size=18"),
    Wrong("rule", "grid.data=100 batch.size=200", "grid.data", "100", "launch.max_ranks=100"),
    Wrong("rule", "model.shape.layers=1 grid.inter=4", "grid.inter", "4", "grid.inter=3"),
    Wrong("rule", "model.shape.heads=5", "model.shape.heads", "5", "model.shape.heads=4"),
    Wrong("rule", "activation_checkpointing=100", "activation_checkpointing", "100", "activation_checkpointing="),
    Wrong("rule", "grid.tensor=2", "grid.tensor", "2", "grid.tensor=1"),
    Wrong("rule", "system=pytorch grid.inter=2", "grid.inter", "2", "grid.inter=1"),
    Wrong("rule", "system=torch_1f1b grid.inter=4 batch.size=4", "batch.microbatch", "2", "batch.microbatch=1"),
    Wrong("rule", "system=torch_interleaved grid.inter=2 batch.size=10", "batch.microbatch", "2", "batch.size=8"),
    Wrong("rule", f"{UNTIED} weights=stash schedule=one_f_one_b", "update_interval", "null", "update_interval=1"),
    Wrong("rule", "system=pipedream grid.inter=2", "model.shape.tied", "true", "model.shape.tied=false"),
    Wrong(
        "rule",
        "system=pipedream_2bw model.shape.tied=false grid.inter=4 measure.discard_first=0",
        "measure.batches",
        "2",
        "measure.batches=4",
    ),
    Wrong("rule", "data=digits", "data", "digits", "model=vgg_narrow"),
    Wrong("rule", f"{GRAPH} grid.data=4 exchange.replication=3", "exchange.replication", "3", "replication=2"),
    Wrong("rule", "system=sparsity_aware grid.inter=2", "grid.inter", "2", "grid.data=2"),
    Wrong("rule", "executor=check system=cagnet", "system", "cagnet", "executor=full_graph"),
    Wrong(
        "rule", "launch=torchrun grid.inter=2 comm.transport=mpi", "comm.transport", "mpi", "launch.launcher=mpiexec"
    ),
    Wrong("rule", "executor=check optimizer.lr=0.5", "optimizer.lr", "0.5", "executor=real"),
    Wrong("rule", "executor=emulated executor.stragglers={9:2} grid.inter=2", "stragglers", "9", "{1: 2}"),
    Wrong("rule", f"{SIMULATED} system=torch_1f1b", "system", "torch_1f1b", "system=axonn"),
    Wrong("rule", "model=llama3_8b", "model", "llama3_8b", "executor=simulated"),
    Wrong("rule", "executor=check model=llama3_8b", "model", "llama3_8b", "executor=simulated"),
    Wrong("rule", "checkpoint.every=10", "checkpoint.every", "10", "checkpoint.folder="),
]
# advice that depends on the user's files or needs another command
NOT_APPLIED = {"checkpoint.every=10", "system=axonn,gpipe"}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A user's folder with a schedule and a model."""
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr(locate, "_folders", [])
    monkeypatch.delitem(sys.modules, "own_parts", raising=False)
    (tmp_path / "own_parts.py").write_text(CODE)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(MODEL)
    yield str(tmp_path)
    sys.modules.pop("own_parts", None)


def words_of(wrong: Wrong, mine: str) -> list[str]:
    """The overrides of a command; the last one of a key stands."""
    by_key = {word.partition("=")[0]: word for word in wrong.words.replace("{mine}", mine).split()}
    return list(by_key.values())


def refusal(words: Sequence[str]) -> str:
    """The text of the only refusal of a command."""
    try:
        errors: list[SuiteError | None] = [run.refusal for run in expand(words)]
    except SuiteError as error:
        errors = [error]
    assert len(errors) == 1
    assert isinstance(errors[0], InvalidRequest), errors
    return str(errors[0])


def mended(words: Sequence[str], value: str, message: str) -> list[str]:
    """The command after the advice of its refusal: the nearest name in place of the misspelled one, or other values."""
    advice = message.rpartition("; legal: ")[2]
    if nearest := re.fullmatch(r"(?:did you mean )?'([^']+)'\??", advice):
        wrong_name = re.search(r"named '([^']*)'", message)
        wrong = wrong_name[1] if wrong_name else value
        at = next(number for number, word in enumerate(words) if wrong in word.lstrip("+").partition("=")[::2])
        word = words[at].replace(wrong, nearest[1]) if wrong else words[at] + nearest[1]
        return [*words[:at], *([f"+{word}"] if word.startswith("+") else [word]), *words[at + 1 :]]  # ++ adds or sets
    advice, _, without = advice.partition(" without ")
    first = re.split(r", | or ", advice)[0]
    changes = re.findall(r"[~+]?[\w.]+(?:=(?:\{[^}]*\}|\S+))?", first)
    assert " ".join(changes) == first, f"no command: {advice}"
    keys = {key_of(change) for change in changes}
    replaced = {key_of(word): word for word in words if key_of(word) in keys}
    other = [word for word in words if key_of(word) not in {*keys, without} and not is_group(word, message, changes)]
    overrides = [each.replace(" ", "") for each in changes if not each.startswith("~")]
    return [*other, *("+" * replaced.get(key_of(each), "").startswith("+") + each for each in overrides)]


def is_group(word: str, message: str, changes: Sequence[str]) -> bool:
    """Whether a word gives one value to a group of keys, of which the advice sets one."""
    return message.startswith(f"{word}; ") and changes[0].startswith(f"{key_of(word)}.")


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.words)
def test_wrong_command_is_refused_and_its_advice_works(wrong: Wrong, mine: str) -> None:
    words = words_of(wrong, mine)
    message = refusal(words)
    assert "\n" not in message
    assert len(message.replace(mine, "")) <= LONGEST, message
    what, rule, legal = re.fullmatch(r"(.+?); rule: (.+?)(?:; legal: (.+))", message).groups()  # type: ignore[union-attr]
    assert wrong.key in what
    assert wrong.value in what
    assert rule
    assert wrong.legal in f"{rule}; {legal}"
    if wrong.words not in NOT_APPLIED:
        after = mended(words, wrong.value, message)
        assert after != words
        assert {str(run.refusal) for run in expand(after)} == {"None"}, after


def test_table_covers_every_kind_of_mistake() -> None:
    kinds = [wrong.kind for wrong in WRONG]
    assert len(WRONG) >= 40
    assert {kind: kinds.count(kind) >= 5 for kind in kinds} == dict.fromkeys(
        ("key", "choice", "path", "argument", "type", "bound", "rule"), True
    )
    assert len(NOT_APPLIED) <= 4
    assert {wrong.words for wrong in WRONG} >= NOT_APPLIED


@pytest.mark.parametrize(
    "words",
    [
        "grid.iner=2",
        "model=gpt_tinny",
        "system=axonn,gpipe",
        "schedule=gpipe schedule._target_=baselines.gpipe.Gpipe",
        "optimizer=sgd optimizer.momentum=high",
        "batch.size=many",
        "grid.inter=0",
        "grid.data=3",
        f"{GRAPH} exchange.replication=0",
        f"{SIMULATED} executor.plan=best",
    ],
)
def test_command_prints_its_refusal_and_ends_with_status_2(
    words: str, mine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = next(each for each in WRONG if each.words == words)
    status = main([*words_of(wrong, mine), f"reports={tmp_path / 'reports'}"])
    output = capfd.readouterr()
    assert status == Exit.NOTHING
    assert "Traceback" not in output.err + output.out
    assert "; rule: " in output.err + output.out
    assert wrong.value in output.err + output.out
