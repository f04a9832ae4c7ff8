"""One run: its ranks, its samples, and its record.

Warm-up batches are trained, not timed. Every run leaves a record, with whatever it measured."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.config.executor import MicrobenchmarkExecutor
from suite.config.run import RunConfig
from suite.core import load
from suite.core.errors import InvalidRequest, MissingDependency, SuiteError
from suite.core.protocols import ExecutorResult
from suite.core.reasons import whole
from suite.core.record import Metric, Outcome, Record, Source
from suite.core.trace import Span, Trace
from suite.core.units import si
from suite.runner import batch_metrics, estimate, provenance
from suite.runner.executors import emulated_rank, in_process, registry
from suite.runner.launch.processes import Ranks, RunFailed
from suite.runner.ranks import resume
from suite.runner.ranks.messages import RankReply, Told
from suite.runner.runs import Run
from suite.runner.store import Store


class Session:
    """One run in progress: its ranks, and its results so far."""

    prepared: Any = None  # what ranks need that is made once, here

    def __init__(self, run: Run, key: str, scratch: Path, turns: str) -> None:
        self.run, self.key, self.turns = run, key, turns
        self.config = run.config
        self.plan = run.config.measure
        self.placed = resume.placed(run.config, key)
        self.holdings = scratch / key / "holdings"  # the ranks' parts of a graph
        if run.config.executor.kind == "full_graph":
            self.placed = self.placed.changed({"graph.holdings": str(self.holdings)})
        self.ranks = Ranks(self.placed, run.ranks, scratch / key)
        self.durations: list[float] = []
        self.losses: list[float] = []
        self.scores: dict[str, list[float]] = {}  # of validations, by name
        self.phases: list[Any] = []  # seconds of a batch, and each rank's update
        self.parts: list[Any] = []  # each rank's seconds of a batch on parts of passes and steps
        self.traces: list[Trace] = []  # of the last batch of each turn
        self.gemm = 0.0
        self.memory: dict[str, list[int]] = {}
        executor = run.config.executor
        self.microbenchmark = executor.build() if isinstance(executor, MicrobenchmarkExecutor) else None
        self.source: Source = Source.EMULATED if executor.kind == "emulated" else Source.MEASURED
        self.simulated: dict[str, Metric] = {}
        self.sweeps: list[Any] = []  # of a microbenchmark, by timed batch and rank
        self.left = ExecutorResult(self.source)  # what its record keeps of them
        self.trace = Trace()
        self.extra: Told = {}
        self.trouble: RunFailed | None = None
        self.started = time.time()
        self.load = load.averages()
        self.seconds = 0.0

    def guarded(self, step: Any, *arguments: Any) -> bool:
        """Take one step; trouble ends this run and no other. Whether this step met it: the record is due at once."""
        if self.trouble is not None:
            return False
        begin = time.monotonic()
        try:
            step(*arguments)
        except RunFailed as trouble:
            self.trouble = trouble
        except Exception as error:  # a fault of a system or of the suite itself must not end the others either
            self.trouble = RunFailed(Outcome.FAILED, whole(error))
        self.seconds += time.monotonic() - begin
        if self.trouble is not None:
            self.ranks.stop()
        return self.trouble is not None

    def start(self) -> None:
        """Starts the ranks; they build their system while others are started."""
        if self.config.executor.kind == "full_graph":
            try:
                self.prepared = registry.preparation()(config=self.config, folder=self.holdings)
            except (InvalidRequest, MissingDependency) as error:
                missing = isinstance(error, MissingDependency)
                raise RunFailed(Outcome.MISSING_DEPENDENCY if missing else Outcome.UNSUPPORTED, str(error)) from error
        self.ranks.start(self.config.launch.deadline)

    def built(self) -> None:
        self.ranks.ask(self.config.launch.deadline, do="built")
        self.ranks.sleep()

    def warm_up(self) -> None:
        """Alone on the machine: the rate of matrix products, and the batches that are not timed."""
        answers = self.ranks.ask(self.plan.deadline, do="prepare")
        self.gemm = sum(answer["gemm"] for answer in answers)
        first = answers[0]
        self.extra = {"data": first["data"], "staged": first["staged"]}
        self.extra |= {"carrier": first["carrier"], "order": first["order"], **first.get("told", {})}
        if self.plan.warm_up:
            self.train(0, self.config.warm_up_batches)
        self.ranks.sleep()

    def train(self, batches: int, settle: int) -> None:
        """One turn; its first `settle` batches are not samples. A batch takes as long as its slowest rank."""
        answers = self.ranks.ask(self.plan.deadline, do="train", batches=settle + batches)
        if self.plan.validate_when != "every_round":
            self.ranks.sleep()
        took = [max(times) for times in zip(*(answer["durations"] for answer in answers), strict=True)]
        self.durations += took[settle:]
        updates = zip(*(answer["updates"] for answer in answers), strict=True)
        self.phases += list(zip(took, updates, strict=True))[settle:]
        self.parts += list(zip(*(answer["parts"] for answer in answers), strict=True))[settle:]
        self._keep_losses(answers)
        self._keep_samples([answer["told"] for answer in answers if "told" in answer], settle)
        self.trace = Trace(Span.from_row(row) for answer in answers for row in answer["spans"]).shifted()
        self.traces += [self.trace] if batches else []
        if self.plan.validate_when == "every_round":
            if batches:
                self._validate()
            self.ranks.sleep()

    def finish(self) -> None:
        """Memory over one more batch, validation, and the end of the ranks."""
        answers = self.ranks.ask(self.plan.deadline, do="memory")
        self._keep_losses(answers)
        reports = [answer.get("told", {}) for answer in answers]
        self.extra |= reports[0]
        self.extra["host"] = {
            k: max(rank.get("host", {}).get(k, 0) for rank in reports) for k in reports[0].get("host", {})
        }
        kinds = dict.fromkeys(kind for answer in answers for kind in answer["memory"])
        self.memory = {kind: [answer["memory"].get(kind, 0) for answer in answers] for kind in kinds}
        if self.plan.validate_when == "end":
            self._validate()
        if self.source is Source.EMULATED:
            self.simulated = emulated_rank.metrics(self.config, self.trace)
        resume.finished(self.placed)
        self.ranks.dismiss()

    def stop(self) -> bool:
        """Leaves no process. Whether ranks that were done could not close, which is no good end: the record is due."""
        self.ranks.stop()
        if self.trouble is None and self.ranks.parting:
            self.trouble = RunFailed(Outcome.FAILED, f"the ranks were done and did not close\n{self.ranks.parting}")
            return True
        return False

    def _keep_losses(self, answers: Sequence[RankReply]) -> None:
        self.losses += [float("nan") if loss is None else loss for loss in answers[0]["losses"]]
        bad = next((number for number, loss in enumerate(self.losses) if not math.isfinite(loss)), None)
        if bad is not None:
            raise RunFailed(Outcome.DIVERGED, f"the loss of batch {bad} is {self.losses[bad]}")

    def _validate(self) -> None:
        if self.plan.eval_batches:
            answers = self.ranks.ask(self.plan.deadline, do="evaluate", batches=self.plan.eval_batches)
            for name, value in answers[0]["scores"].items():
                if value is not None:
                    self.scores.setdefault(name, []).append(value)
            if not all(map(math.isfinite, self.scores.get("loss", ()))):
                raise RunFailed(Outcome.DIVERGED, f"the validation loss is {self.scores['loss'][-1]}")

    def _keep_samples(self, told: Sequence[Told], settle: int) -> None:
        if told and self.microbenchmark is not None:
            self.sweeps += list(zip(*(rank["sweeps"] for rank in told), strict=True))[settle:]
            if self.sweeps:
                self.left = self.microbenchmark.left(self.config, told[0], self.sweeps)

    def record(self, store: Store) -> Record:
        """The record of this run; samples are kept whatever its outcome. A fault on the way to its record is all
        that is left of it.
        """
        try:
            return self._record(store)
        except Exception as error:
            return in_process.unfinished_record(self.run, self.key, Outcome.FAILED, whole(error))

    def _record(self, store: Store) -> Record:
        cores: int = provenance.machine()["cores"]
        computes = self.config.executor.trains  # ranks that sleep do not compete, and have no model
        crowded = computes and self.run.ranks * self.config.launch.threads > cores
        note = f"oversubscribed: {self.run.ranks} ranks on {cores} cores, not comparable" if crowded else ""
        timed = self.durations and not self.sweeps
        name = "replay_time" if self.config.executor.one_process else "batch_time"
        metrics = {name: Metric("s", "lower", tuple(self.durations), note)} if timed else {}
        measured = {**batch_metrics.metrics(self.phases), **batch_metrics.inner(self.parts)} if timed else {}
        measured |= (
            {**batch_metrics.told_apart(self.traces, self.run.grid), **batch_metrics.exchanged(self.traces)}
            if timed
            else {}
        )
        measured |= batch_metrics.scored({name: values for name, values in self.scores.items() if name != "loss"})
        metrics |= {
            **measured,
            **self.simulated,
            **self.left.metrics,
            **(self.prepared.metrics if self.prepared else {}),
        }
        units = {"tokens_per_batch": "token", "images_per_batch": "image"}
        for name, value in _counts(self.config).items() if computes else ():
            metrics[name] = Metric(units.get(name, "flop"), "", (value,))
        if self.gemm:
            threads = self.config.launch.threads
            origin = f"measured: {self.run.ranks} ranks multiply matrices at once, {threads} threads each"
            metrics["peak_flops"] = Metric("flop/s", "higher", (self.gemm,), origin)
        if self.memory:
            metrics |= batch_metrics.held(self.memory, self.extra.get("host", {}))
        foretold = self.prepared.memory if self.prepared else _predicted(self.config)
        memory = {"predicted": foretold} if computes else {}
        loads = in_process.load_averages(self.load)
        if self.memory:
            memory["measured"] = self.memory
        return Record(
            key=self.key,
            experiment=self.config.experiment.name,
            system=self.config.system.name,
            label=self.run.label,
            outcome=self.trouble.outcome if self.trouble else Outcome.OK,
            reason=self.trouble.reason if self.trouble else "",
            source=self.source,
            config=self.run.settings,
            metrics=metrics,
            memory=memory,
            series={**self._series(), **self.left.series},
            trace=store.write_trace(self.key, self.run.grid, self.trace) if self.trace else None,
            notes=self._notes(),
            provenance=in_process.run_provenance(
                self.run,
                self.started,
                self.seconds,
                turns=self.turns,
                load=loads,
                **{**self.extra, **self._graph(), **self._hosts()},  # a graph's data replace the data of its ranks
            ),
        )

    def _graph(self) -> dict[str, Any]:
        return {"data": self.prepared.provenance} if self.prepared else {}

    def _hosts(self) -> dict[str, Any]:
        """Of ranks that are on several: by rank."""
        hosts = [self.ranks.hosts[rank] for rank in sorted(self.ranks.hosts)]
        return {"hosts": hosts} if len(set(hosts)) > 1 else {}

    def _series(self) -> dict[str, list[float]]:
        """The loss of every batch, and what every validation found."""
        names = {name: "validation_loss" if name == "loss" else name for name in ("loss", *self.scores)}
        return {"loss": self.losses, **{name_shown: self.scores.get(name, []) for name, name_shown in names.items()}}

    def _host(self) -> str:
        """Predicted bytes of states on the host, on the rank that holds most of them."""
        return si(max(budget.layout.bytes(home="host") for budget in estimate.budgets(self.config)), "B")

    def _notes(self) -> tuple[str, ...]:
        """Notes on the messages for readers of the times."""
        staged = ["messages are staged through host memory"] if self.extra.get("staged") else []
        static = ["order=static: ops ran in the checker's order"] if self.extra.get("order") == "static" else []
        overlap = self.extra.get("overlap", "")  # why there was nothing to overlap is no remark
        in_words = overlap.startswith(("chunks", "off (clipping)"))
        beside = [f"overlap={overlap}: of steps and reductions"] if in_words else []
        host = {kind: size for kind, size in self.extra.get("host", {}).items() if size}
        kinds = ", ".join(f"{kind} {si(size, 'B')}" for kind, size in host.items())
        away = [f"on the host of the fullest rank: {kinds}; predicted {self._host()}"] if host else []
        skipped = self.extra.get("skipped", 0)
        left_out = [f"{skipped} batches overflowed and were left out"] if skipped else []
        notes = (*self.extra.get("resumed", ()), *self.extra.get("notes", ()))  # of the resuming, and of the system
        prepared = self.prepared.notes if self.prepared else ()
        return (*staged, *static, *beside, *away, *left_out, *notes, *prepared, *self.left.notes)


def _counts(config: RunConfig) -> dict[str, float]:
    """Tokens and flops of a batch; none where there is no formula for the model."""
    try:
        return estimate.counts(config)
    except (SuiteError, KeyError, TypeError, AttributeError):
        return {}


def _predicted(config: RunConfig) -> dict[str, list[int]]:
    """Predicted bytes by kind, one per rank; empty where there is no formula for the system or the model."""
    if not config.system.has_memory_model:
        return {}
    try:
        kinds = [budget.by_kind() for budget in estimate.budgets(config)]
    except (SuiteError, KeyError, TypeError, AttributeError):  # another kind of model
        return {}
    names = list(dict.fromkeys(name for rank in kinds for name in rank))
    return {name: [rank.get(name, 0) for rank in kinds] for name in names}
