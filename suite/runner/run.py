"""One run in progress: its ranks, its samples, and its record.

Warm-up batches are trained but not timed. Every run writes a record with its samples so far, whatever its outcome.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeVar, cast

from suite.config.executor import MicrobenchmarkExecutor
from suite.config.run import RunConfig
from suite.core import load
from suite.core.errors import SuiteError
from suite.core.protocols import ExecutorResult
from suite.core.record import Metric, Outcome, Record, Source
from suite.core.trace import Span, Trace
from suite.core.units import si
from suite.core.values import Json
from suite.runner import batch_metrics, estimate, provenance
from suite.runner.ending import ending_of
from suite.runner.executors import emulated_rank, in_process
from suite.runner.launch.processes import RankGroup, RunFailed
from suite.runner.ranks import resume
from suite.runner.ranks.messages import RankFacts, RankReply
from suite.runner.runs import Run
from suite.runner.store import Store

T = TypeVar("T")
PATIENCE = 5.0  # a round may take this many times as long as the batches before it


class ActiveRun:
    """A run with ranks: the steps of its measurement, and its samples so far.

    Attributes:
        plan: The `measure` settings.
        durations: Seconds of each timed batch, on its slowest rank.
        slowest: Seconds of the slowest batch of the last round, or of the warm-up.
        losses: Loss of each batch.
        scores: Validation scores by name.
        phases: Seconds of each timed batch, and the update of each rank.
        parts: Seconds of inner spans of each timed batch, by rank.
        traces: Seconds and trace of the last batch of each round.
        foreign: Cores that other programs used in each round, where all ranks are on this host.
        gemm: Rate of matrix products of all ranks together, in flop/s.
        memory: Peak bytes of each rank by kind.
        allocator: Peak bytes of each rank's GPU by its allocator.
        sweeps: Samples of a microbenchmark, by timed batch and rank.
        extra: Results that the ranks do not measure: of the preparation of a graph, the samples of a microbenchmark,
            the prediction of an emulated run.
        facts: Facts for the provenance.
        graph_facts: Facts of a graph, in place of those of the ranks.
        failure: Reason for which the run ended early.
    """

    def __init__(self, run: Run, scratch: Path, group_id: str) -> None:
        self.run, self.group_id = run, group_id
        self.config = run.config
        self.plan = run.config.measure
        self.rank_config = resume.with_run_folder(run.config, run.key)
        self.graph_folder = scratch / run.key / "holdings"  # the ranks' parts of a graph
        if run.config.executor.kind == "full_graph":
            self.rank_config = self.rank_config.changed({"graph.holdings": str(self.graph_folder)})
        self.ranks = RankGroup(self.rank_config, run.ranks, scratch / run.key)
        self.source = Source.EMULATED if run.config.executor.kind == "emulated" else Source.MEASURED
        self.durations: list[float] = []
        self.slowest = 0.0
        self.losses: list[float] = []
        self.scores: dict[str, list[float]] = {}
        self.phases: list[Any] = []
        self.parts: list[Any] = []
        self.trace = Trace()
        self.traces: list[tuple[float, Trace]] = []
        self.foreign: list[float] = []
        self.gemm = 0.0
        self.memory: dict[str, list[int]] = {}
        self.allocator: list[Mapping[str, int]] = []
        self.sweeps: list[Any] = []
        self.extra = ExecutorResult(self.source)
        self.facts: RankFacts = {}
        self.graph_facts: Mapping[str, Json] = {}
        self.failure: RunFailed | None = None
        self.started = time.time()
        self.load = load.averages()
        self.seconds = 0.0

    def attempt(self, step: Callable[..., None], *arguments: Any) -> None:
        """Take a step. A failure ends this run and no other."""
        begin = time.monotonic()
        try:
            step(*arguments)
        except Exception as error:  # a fault of a system or of the suite must not end other runs
            self.failure = error if isinstance(error, RunFailed) else RunFailed(*ending_of(error))
        self.seconds += time.monotonic() - begin
        if self.failure is not None:
            self.ranks.stop()

    def start(self) -> None:
        """Start the ranks, which build their system while the ranks of other runs start."""
        if self.config.executor.kind == "full_graph":
            from suite.gnn.partition_data import Prepared  # needs scipy

            graph = Prepared(config=self.config, folder=self.graph_folder)
            memory = {"predicted": graph.memory}
            self.extra = ExecutorResult(self.source, metrics=graph.metrics, memory=memory, notes=graph.notes)
            self.graph_facts = {"data": cast("Json", graph.provenance)}
        self.ranks.start(self.config.launch.deadline)

    def wait_until_built(self) -> None:
        """Wait until every rank has built its system, then suspend the ranks."""
        self.ranks.request(self.config.launch.deadline, do="built")
        self.ranks.suspend()

    def warm_up(self) -> None:
        """Measure the rate of matrix products and train the warm-up batches, while other runs are suspended."""
        replies = self.ranks.request(self.plan.deadline, do="prepare")
        self.gemm = sum(reply["gemm"] for reply in replies)
        self.facts = replies[0]["facts"]
        if self.plan.warm_up:
            self.train(0, self.config.warm_up_batches)
        self.ranks.suspend()

    def train(self, batches: int, discard_first: int) -> None:
        """Train one round of `discard_first` untimed and `batches` timed batches.

        The time of a batch is the time on its slowest rank.
        """
        count, before = discard_first + batches, load.cpu_time()
        replies = self.ranks.request(self._deadline(count), do="train", batches=count)
        if {*self.ranks.hosts} == {socket.gethostname()} and not self.config.executor.one_process:
            cpu = sum(reply["cpu"] for reply in replies)
            self.foreign.append(load.foreign_cores(before, load.cpu_time(), ranks=cpu))
        if self.plan.validate_when != "every_round":
            self.ranks.suspend()
        seconds = [max(times) for times in zip(*(reply["durations"] for reply in replies), strict=True)]
        self.slowest = max(seconds, default=0.0)
        self.durations += seconds[discard_first:]
        updates = zip(*(reply["updates"] for reply in replies), strict=True)
        self.phases += list(zip(seconds, updates, strict=True))[discard_first:]
        self.parts += list(zip(*(reply["parts"] for reply in replies), strict=True))[discard_first:]
        self._add_losses(replies)
        self._add_sweeps([reply["facts"] for reply in replies if "facts" in reply], discard_first)
        self.trace = Trace(Span.from_row(row) for reply in replies for row in reply["spans"]).shifted()
        self.traces += [(seconds[-1], self.trace)] if batches else []
        if self.plan.validate_when == "every_round":
            if batches:
                self._validate()
            self.ranks.suspend()

    def _deadline(self, batches: int) -> float:
        """Seconds in which the ranks train `batches` batches, or are taken for stuck."""
        return float(max(self.plan.deadline, PATIENCE * self.slowest * batches))

    def finish(self) -> None:
        """Count memory over one more batch, validate, and dismiss the ranks."""
        replies = self.ranks.request(self._deadline(1), do="memory")
        self._add_losses(replies)
        rank_facts = [reply.get("facts", {}) for reply in replies]
        self.facts |= rank_facts[0]
        host_kinds = rank_facts[0].get("host", {})
        self.facts["host"] = {
            kind: max(facts.get("host", {}).get(kind, 0) for facts in rank_facts) for kind in host_kinds
        }
        self.allocator = [reply.get("peaks", {}) for reply in replies]
        self.memory = _by_kind([counts for reply in replies for counts in reply["memory"]])
        if self.plan.validate_when == "end":
            self._validate()
        if self.source is Source.EMULATED:
            self.extra = ExecutorResult(self.source, metrics=emulated_rank.metrics(self.config, self.trace))
        resume.retire_checkpoints(self.rank_config)
        self.ranks.dismiss()

    def stop(self) -> bool:
        """End all processes. Returns whether a finished run failed only now, because its ranks could not close."""
        self.ranks.stop()
        if self.failure is None and self.ranks.closing_failure:
            reason = f"the ranks finished but did not close\n{self.ranks.closing_failure}"
            self.failure = RunFailed(Outcome.FAILED, reason)
            return True
        return False

    def _add_losses(self, replies: Sequence[RankReply]) -> None:
        self.losses += [float("nan") if loss is None else loss for loss in replies[0]["losses"]]
        batch = next((number for number, loss in enumerate(self.losses) if not math.isfinite(loss)), None)
        if batch is not None:
            raise RunFailed(Outcome.DIVERGED, f"the loss of batch {batch} is {self.losses[batch]}")

    def _validate(self) -> None:
        if self.plan.eval_batches and self.config.executor.trains:
            replies = self.ranks.request(self.plan.deadline, do="evaluate", batches=self.plan.eval_batches)
            for name, value in replies[0]["scores"].items():
                if value is not None:
                    self.scores.setdefault(name, []).append(value)
            if not all(map(math.isfinite, self.scores.get("loss", ()))):
                raise RunFailed(Outcome.DIVERGED, f"the validation loss is {self.scores['loss'][-1]}")

    def _add_sweeps(self, rank_facts: Sequence[RankFacts], discard_first: int) -> None:
        if rank_facts and isinstance(executor := self.config.executor, MicrobenchmarkExecutor):
            self.sweeps += list(zip(*(facts["sweeps"] for facts in rank_facts), strict=True))[discard_first:]
            if self.sweeps:
                self.extra = executor.build().summarize(self.config, rank_facts[0], self.sweeps)

    def record(self, store: Store) -> Record:
        """The record of this run with all samples so far. If it cannot be built, the record holds the error alone."""
        try:
            return self._record(store)
        except Exception as error:
            return in_process.record_of(self.run, ending_of(error))

    def _record(self, store: Store) -> Record:
        predicted = {"predicted": self._predicted_memory()} if self.config.executor.trains else {}
        averages = in_process.load_averages(self.load) | ({"foreign": fmean(self.foreign)} if self.foreign else {})
        hosts = {"hosts": self.ranks.hosts} if len(set(self.ranks.hosts)) > 1 else {}
        scores = {name: values for name, values in self.scores.items() if name != "loss"}
        result = ExecutorResult(
            self.source,
            metrics=self._metrics(),
            memory={**predicted, **self.extra.memory, **({"measured": self.memory} if self.memory else {})},
            series={"loss": self.losses, "validation_loss": self.scores.get("loss", []), **scores, **self.extra.series},
            panels=self.extra.panels,
            notes=self._notes(),
        )
        trace = store.write_trace(self.run.key, self.run.grid, trace) if (trace := self._usual_trace()) else None
        return in_process.record_of(
            self.run,
            (self.failure.outcome, self.failure.reason) if self.failure else (Outcome.OK, ""),
            result,
            (self.started, self.seconds),
            trace,
            turns=self.group_id,
            load=averages,
            **{**self.facts, **self.graph_facts, **hosts},
        )

    def _usual_trace(self) -> Trace:
        """Trace of the traced batch whose time is nearest to the median; that of the warm-up before any round."""
        if not self.traces:
            return self.trace
        usual = median(self.durations)
        return min(self.traces, key=lambda traced: abs(traced[0] - usual))[1]

    def _metrics(self) -> dict[str, Metric]:
        trains = self.config.executor.trains  # emulated ranks compute nothing, so they do not compete for cores
        cores: int = provenance.machine()["cores"]
        threads = self.config.launch.threads
        oversubscribed = trains and self.run.ranks * threads > cores
        note = f"oversubscribed: {self.run.ranks} ranks on {cores} cores, not comparable" if oversubscribed else ""
        metrics: dict[str, Metric] = {}
        if self.durations and not self.sweeps:
            name = "replay_time" if self.config.executor.one_process else "batch_time"
            metrics[name] = Metric("s", "lower", tuple(self.durations), note)
            metrics |= batch_metrics.phase_metrics(self.phases)
            metrics |= batch_metrics.inner_time_metrics(self.parts)
            traces = [trace for _, trace in self.traces]
            metrics |= batch_metrics.breakdown_metrics(traces, self.run.grid)
            metrics |= batch_metrics.exchange_metrics(traces)
        metrics |= batch_metrics.score_metrics({name: v for name, v in self.scores.items() if name != "loss"})
        metrics |= self.extra.metrics
        units = {"tokens_per_batch": "token", "images_per_batch": "image"}
        for name, value in (_if_known(estimate.counts, self.config) or {}).items() if trains else ():
            metrics[name] = Metric(units.get(name, "flop"), "", (value,))
        if self.gemm:
            origin = f"measured: {self.run.ranks} ranks multiply matrices at once, {threads} threads each"
            metrics["peak_flops"] = Metric("flop/s", "higher", (self.gemm,), origin)
        if self.memory:
            metrics |= batch_metrics.memory_metrics(self.memory, self.facts.get("host", {}))
            metrics |= batch_metrics.allocator_metrics(self.allocator)
        return metrics

    def _predicted_memory(self) -> dict[str, list[int]]:
        """Predicted bytes by kind, one per rank; empty without a formula for the system or the model."""
        if not self.config.system.has_memory_model:
            return {}
        return _by_kind([each.by_kind() for each in _if_known(estimate.budgets, self.config) or ()])

    def _notes(self) -> tuple[str, ...]:
        """Notes for readers of the times and of the memory."""
        notes = [f"on {gpu}" for gpu in provenance.gpus()] if self.config.launch.device == "cuda" else []
        if self.facts.get("staged"):
            notes.append("messages are staged through host memory")
        if self.facts.get("order") == "static":
            notes.append("order=static: ops ran in the checker's order")
        overlap = self.facts.get("overlap", "")
        if overlap.startswith(("chunks", "off (clipping)")):  # where nothing could overlap, there is no note
            notes.append(f"overlap={overlap}: of steps and reductions")
        host = {kind: size for kind, size in self.facts.get("host", {}).items() if size}
        if host:
            sizes = ", ".join(f"{kind} {si(size, 'B')}" for kind, size in host.items())
            predicted = max(budget.layout.bytes(home="host") for budget in estimate.budgets(self.config))
            notes.append(f"on the host of the fullest rank: {sizes}; predicted {si(predicted, 'B')}")
        if skipped := self.facts.get("skipped", 0):
            notes.append(f"{skipped} batches overflowed and were left out")
        notes += [*self.facts.get("at_start", ()), *self.facts.get("notes", ())]
        return (*notes, *self.extra.notes)


def _if_known(estimated: Callable[[RunConfig], T], config: RunConfig) -> T | None:
    """An estimate of a run; None without a formula for the model."""
    try:
        return estimated(config)
    except (SuiteError, KeyError, TypeError, AttributeError):
        return None


def _by_kind(ranks: Sequence[Mapping[str, int]]) -> dict[str, list[int]]:
    """Bytes of each rank, by kind."""
    kinds = dict.fromkeys(kind for rank in ranks for kind in rank)
    return {kind: [rank.get(kind, 0) for rank in ranks] for kind in kinds}
