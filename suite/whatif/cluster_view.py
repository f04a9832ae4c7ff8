"""Cluster view: time, memory and layout of a training step of a language model on a machine.

A question names a current software generation, laid out as `suite plan` does, or a system of the papers that the
executor `simulated` models by the blocks of a GPT.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import fsum
from typing import Any
from urllib.parse import urlencode

from suite.core.errors import InvalidRequest
from suite.core.units import si
from suite.core.words import shell_line, value_of
from suite.simulate.block_model import SystemModel
from suite.simulate.cluster import Ranking, SimulatedLayout, StackCluster, SystemCluster, replicas
from suite.simulate.nearest import SetupFeatures, nearest
from suite.simulate.network.machine import Machine
from suite.simulate.operations.generation import generations
from suite.simulate.operations.layouts import default_batch, one_device
from suite.simulate.operations.products import share_of, with_share
from suite.simulate.operations.setup import RECOMPUTE, SHARDING
from suite.simulate.search import TRACED
from suite.whatif.answer import AnswerPart, AnswerTable, CellLink, Fact
from suite.whatif.catalogue import Catalogue, build, chosen
from suite.whatif.evidence import Point
from suite.whatif.question import Key, ViewQuestion

GB = 1e9
TOP = 5
MOST = 2**16
SMALL = 0.1  # percent of a step; a constant that changes it by less is not listed
PIPELINE = "pipeline"  # the system whose schedule is a choice
SHARED = ("model", "machine", "devices", "batch", "sequence", "system", "layout")
SIZES, OF_STATES = ("tensor", "pipeline", "microbatch"), ("recompute", "sharding")
GIVEN = (*SIZES, "schedule", *OF_STATES)  # of a layout of a stack
OF_PLAN = {key: key for key in ("model", "machine", "devices", "batch", "sequence", "generation")}
OF_RUN = {key: key for key in ("system", "schedule", "model", "machine", "efficiency")}
OF_RUN |= {"sequence": "model.shape.sequence", "sparsity": "pruning.sparsity"}


def keys(catalogue: Catalogue) -> tuple[Key, ...]:
    """Keys of the view."""
    models, machines, systems, efficiencies = (
        tuple(catalogue[group]) for group in ("models", "machines", "systems", "efficiencies")
    )
    schedules = tuple(name for name, one in catalogue["schedules"].items() if one["update_interval"] is None)
    return (
        Key("model", "choice", "llama3_8b", "Language model", models, "models"),
        Key("machine", "choice", "h100", "Data sheet of the machine", machines, "machines"),
        Key("devices", "whole", "64", "Devices of the cluster", least=1, most=MOST),
        Key("batch", "whole", "", "Sequences per step; empty: about four million tokens", least=1),
        Key("sequence", "whole", "", "Tokens per sequence; empty: those of the model", least=1),
        Key("generation", "choice", "compiled", "Software generation of a current stack", tuple(generations())),
        Key("system", "choice", "", "System of the papers; empty: a current stack", systems),
        Key("sparsity", "number", "0.9", "Pruned share of the weights of a system that prunes", most=1),
        Key("efficiency", "choice", "usual", "Efficiency of a system of the papers", efficiencies),
        Key("layout", "choice", "search", "Whether the fastest layout is searched, or given", ("search", "given")),
        Key("tensor", "whole", "1", "Tensor-parallel ranks of a given layout", least=1, most=MOST),
        Key("pipeline", "whole", "1", "Pipeline ranks of a given layout", least=1, most=MOST),
        Key("microbatch", "whole", "1", "Sequences per microbatch of a given layout", least=1, most=MOST),
        Key("schedule", "choice", "one_f_one_b", "Schedule of a given layout", schedules, "schedules"),
        Key("recompute", "choice", "none", "Activations that a given layout computes again", RECOMPUTE, rare=True),
        Key("sharding", "choice", "optimizer", "States that replicas of a given layout shard", SHARDING, rare=True),
    )


def key_of(word: str) -> str:
    """The key of a word KEY=VALUE or KEY.ARGUMENT=VALUE."""
    return re.split("[.=]", word)[0]


class _Case:
    """Objects that a question names, and its layouts, fastest first."""

    def __init__(self, question: ViewQuestion, catalogue: Catalogue) -> None:
        self.question, self.catalogue = question, catalogue
        self.devices, self.searched = question.whole("devices"), question.text("layout") == "search"
        self.machine: Machine = self.built("machines", "machine")
        self.cluster: Any = self.system() if question.text("system") else self.stack()
        self.batch: int = self.cluster.batch
        layouts: Iterable[Any] = self.cluster.layouts(self.devices) if self.searched else [self.given()]
        self.ranking: Ranking[Any] = self.cluster.rank(layouts, self.devices, TOP)

    def built(self, group: str, key: str) -> Any:
        """The object of an open key, with the arguments of the question in place of its own."""
        data, arguments = chosen(self.catalogue, group, self.question.text(key)), self.question.arguments(key)
        try:
            return build(data, key, arguments)
        except InvalidRequest as error:
            error.rephrase(lambda text: text.replace("model.shape.", "model."))
            raise

    def model(self) -> tuple[Any, int]:
        """Shape of the model, and sequences per step."""
        question, model = self.question, self.built("models", "model")
        model = replace(model, sequence=question.whole("sequence")) if question.text("sequence") else model
        default = default_batch(model.sequence, self.devices)
        return model, question.whole("batch") if question.text("batch") else default

    def stack(self) -> StackCluster:
        model, batch = self.model()
        fitted = {(family, name): share for family, name, share, _ in self.catalogue["constants"]}
        base = one_device(model, self.machine, self.question.text("generation"), batch)
        ranges = {**self.catalogue["ranges"], "products": (min(fitted.values()), max(fitted.values()))}
        self.reads: tuple[str, ...] = (*SHARED, "generation", *(() if self.searched else GIVEN))
        return StackCluster(with_share(base, share_of((self.machine.family, base.generation.name), fitted)), ranges)

    def system(self) -> SystemCluster:
        question, (model, batch) = self.question, self.model()
        efficiency = build(chosen(self.catalogue, "efficiencies", question.text("efficiency")), "efficiency")
        data = chosen(self.catalogue, "systems", question.text("system"))
        self.usual = data["layout"].get("sparsity")  # of the published runs; None for a system that does not prune
        if self.usual is not None:
            data = {**data, "layout": {**data["layout"], "sparsity": question.number("sparsity")}}
        system: SystemModel = build(data, "system")
        self.reads = (*SHARED, "efficiency", *(() if self.searched else SIZES))
        self.reads += () if self.usual is None else ("sparsity",)
        if question.text("system") == PIPELINE:
            self.reads += ("schedule",)
            system = replace(system, schedule=self.schedule(), name=question.text("schedule"))
        return SystemCluster(model, self.machine, batch, system, efficiency)

    def schedule(self) -> Any:
        data = chosen(self.catalogue, "schedules", self.question.text("schedule"))["schedule"]
        return build(data, "schedule", self.question.arguments("schedule"))

    def given(self) -> Any:
        """The layout of the question."""
        sizes = (self.devices, *map(self.question.whole, SIZES))
        if isinstance(self.cluster, SystemCluster):
            return self.cluster.given(*sizes)
        return self.cluster.given(*sizes, self.schedule(), **{key: self.question.text(key) for key in OF_STATES})

    def words(self, layout: Any) -> str:
        """The keys of a layout."""
        settings = self.cluster.settings(layout)
        if "schedule" in self.reads and not self.question.text("system") and layout.pipeline > 1:
            settings.setdefault("schedule", self.question.text("schedule"))
        return " ".join(f"{key}={value}" for key, value in settings.items())

    def command(self) -> str:
        """Another command that computes the same; empty if there is none."""
        question, own = self.question, [word for word in self.question.words if "." in word.split("=")[0]]
        own = [word for word in own if key_of(word) in self.reads]

        def words(names: dict[str, str]) -> list[str]:
            texts = {key: question.text(key) for key in names if key in self.reads}
            return [f"{names[key]}={text}" for key, text in texts.items() if text]

        if not question.text("system"):
            return shell_line("plan", words(OF_PLAN)) if self.searched and not own else ""
        own = [re.sub(r"^model\.", "model.shape.", word) for word in own]
        sizes: dict[str, int | str] = {"grid.data": self.devices, "executor.plan": "search"}
        if not self.searched:
            tensor, pipeline, microbatch = map(question.whole, SIZES)
            sizes = {"grid.data": replicas(self.devices, tensor, pipeline), "grid.inter": pipeline}
            sizes |= {"grid.tensor": tensor, "batch.microbatch": microbatch}
        sized = [f"{key}={value}" for key, value in {**sizes, "batch.size": self.batch}.items()]
        return shell_line("run", ["executor=simulated", *words(OF_RUN), *own, *sized])


_LATEST: list[_Case] = []  # the latest case, which `answer` and `more` share


def _case(question: ViewQuestion, catalogue: Catalogue) -> _Case:
    if not any(case.question.values == question.values and case.catalogue is catalogue for case in _LATEST):
        _LATEST[:] = [_Case(question, catalogue)]
    return _LATEST[0]


def answer(question: ViewQuestion, catalogue: Catalogue) -> AnswerPart:
    """Time, memory and layout of a step; for a model that does not fit, what would.

    Raises InvalidRequest for sizes that do not divide each other, and Unsupported for what cannot be simulated.
    """
    case = _case(question, catalogue)
    cluster, ranking, memory, name = case.cluster, case.ranking, case.machine.memory, question.text("machine")
    title = f"{question.text('model')} on {case.devices} devices of {name}, {case.batch} sequences per step"
    system, by = question.text("system"), question.text("system") or f"layout={question.text('layout')}"
    words = [f"{by} does not read {word}." for word in question.words if key_of(word) not in case.reads]
    if not ranking.fastest:
        size, smallest = ranking.smallest
        which = (
            f"No layout fits: the smallest ({case.words(smallest)})" if case.searched else "The layout does not fit: it"
        )
        words.insert(0, f"{which} needs {si(size, 'B')} on its fullest device.")
        words.insert(1, f"A device has {si(memory, 'B')}, so {si(size - memory, 'B')} are missing.")
        return AnswerPart(title=title, words=words, tables=[_memory(case, smallest)])
    best = ranking.fastest[0]
    size, tokens, percent = cluster.bytes(best.layout), cluster.tokens_per_second(best), cluster.percent_of_peak(best)
    facts = [
        Fact("time of a step", si(best.seconds, "s"), best.seconds),
        Fact("percent of peak", f"{percent:.1f} %", percent),
        Fact("tokens per second and device", f"{tokens:,.0f}", tokens),
        Fact("layout", case.words(best.layout)),
        Fact("memory of the fullest device", f"{si(size, 'B')} of {si(memory, 'B')}", size),
    ]
    tables = [_memory(case, best.layout), _breakdown(case, best)]
    if case.searched:
        facts += [Fact("layouts that fit", f"{ranking.fit} of {ranking.tried}", ranking.fit)]
        tables += [_fastest(case)]
    if system and cluster.system.sparse and question.number("sparsity") != case.usual:
        words += [f"Sparse products are as quick as at sparsity={case.usual}, to which efficiency.sparse belongs."]
    return AnswerPart(title=title, words=words, facts=facts, tables=tables, command=case.command())


def _memory(case: _Case, layout: Any) -> AnswerTable:
    """Memory by kind: a row per kind, or per pipeline rank if there are several."""
    ranks, limit = case.cluster.memory(layout), case.machine.memory / GB
    kinds = [kind for kind in ranks[0] if any(each.get(kind) for each in ranks)]
    if len(ranks) == 1:
        rows = [[kind, ranks[0][kind] / GB] for kind in kinds]
        rows += [["all", case.cluster.bytes(layout) / GB], ["limit", limit]]
        return AnswerTable("Memory of a device", ["kind", "GB"], rows, bars=1)
    rows = [
        [f"rank {rank}", *(each.get(kind, 0) / GB for kind in kinds), fsum(each.values()) / GB]
        for rank, each in enumerate(ranks)
    ]
    rows.append(["limit", *(None for _ in kinds), limit])
    return AnswerTable("Memory of a device, GB", ["pipeline rank", *kinds, "all"], rows, bars=len(kinds) + 1)


def _breakdown(case: _Case, step: SimulatedLayout[Any]) -> AnswerTable:
    parts = sorted(case.cluster.breakdown(step.layout).items(), key=lambda each: -each[1])
    rows = [[name.replace("_", " "), part, 100 * part / step.seconds] for name, part in parts if part]
    note = "Mean over the pipeline ranks." if rows else f"A step of more than {TRACED} passes is not broken down."
    return AnswerTable("Breakdown of the step", ["category", "s", "% of the step"], rows, note, bars=2)


def _fastest(case: _Case) -> AnswerTable:
    cluster, rows = case.cluster, []
    for step in case.ranking.fastest:
        given = ["layout=given", *case.words(step.layout).split()]
        kept = {*case.reads} - {key_of(word) for word in given}
        words = [word for word in case.question.words if key_of(word) in kept]
        link = f"#{urlencode([(word.partition('=')[0], value_of(word)) for word in ('view=cluster', *words, *given)])}"
        speed = cluster.tokens_per_second(step), cluster.percent_of_peak(step), cluster.bytes(step.layout) / GB
        rows.append([CellLink(" ".join(given[1:]), link), step.seconds, *speed])
    columns = ["layout", "s per step", "tokens per second and device", "% of peak", "GB"]
    return AnswerTable("Fastest layouts", columns, rows, bars=1)


def _fewest(case: _Case) -> Iterator[AnswerPart]:
    """The fewest devices on which a layout fits, after each number of devices that is tried."""
    batch = f"batches of {case.batch} sequences"
    for devices, layout in case.cluster.smallest_layouts():
        size = case.cluster.bytes(layout)
        text = f"none up to {devices} for {batch}"
        if fits := size <= case.machine.memory:
            text = f"{devices} for {batch}: {case.words(layout)}, {si(size, 'B')} per device"
        yield AnswerPart("fewest", "Fewest devices", facts=[Fact("fewest devices", text, devices if fits else None)])


def more(question: ViewQuestion, catalogue: Catalogue) -> Iterator[AnswerPart]:
    """The fewest devices, the known error of the simulator, and the constants on which the answer depends."""
    case = _case(question, catalogue)
    yield from _fewest(case)
    if case.ranking.fastest:
        yield _known_error(case)
        yield _constants(case)


def point(question: ViewQuestion, catalogue: Catalogue) -> Point:
    """Features by which claims and runs near the question are found."""
    case, names = _case(question, catalogue), ("system", "model", "machine")
    return {
        **{key: question.text(key) for key in names},
        "family": case.machine.family,
        "parameters": case.cluster.model.parameters,
        "devices": case.devices,
    }


def _known_error(case: _Case) -> AnswerPart:
    cells = [(cell[0], SetupFeatures(*cell[1:7]), cell) for cell in case.catalogue["cells"]]
    if not cells:
        words = ["The known error of the simulator is not here: run `suite accuracy`, and `suite whatif` again."]
        return AnswerPart("error", words=words)
    near = nearest(case.cluster.features(case.ranking.fastest[0].layout), cells)
    error = 100 * fsum(abs(cell[7]) for cell in near) / len(near)
    stacks = " of current stacks" if case.question.text("system") else ""
    words = [
        f"Simulated throughput is off by {error:.1f} % on average on the {len(near)} nearest public measurements"
        f"{stacks}. A negative error is a simulator that is too slow."
    ]
    rows = [[cell[0], cell[1], cell[2], cell[6], 100 * cell[7], cell[8]] for cell in near]
    columns = ["measurement", "family", "generation", "devices", "error, %", "source"]
    return AnswerPart("error", words=words, tables=[AnswerTable("Known error", columns, rows, bars=4)])


def _constants(case: _Case) -> AnswerPart:
    step, rows, dropped = case.ranking.fastest[0], [], 0
    for name, ends, seconds in case.cluster.constants(step.layout):
        changes = [100 * (each / step.seconds - 1) for each in seconds]
        widest = max(map(abs, changes))
        if widest < SMALL:
            dropped += 1
        else:
            rows.append([name, *ends, *changes, widest])
    rows.sort(key=lambda row: -row[-1])
    source = "Ranges are those of suite/simulate/operations/sources.yaml; that of products spans all fitted constants."
    if case.question.text("system"):
        source = "Ranges are those of conf/efficiency; without one, half to twice the value."
    note = f"{dropped} further constants change the step by less than {SMALL} %. {source}"
    columns = ["constant", "low", "high", "step at low, %", "step at high, %", "largest change, %"]
    return AnswerPart("constants", tables=[AnswerTable("Sensitivity", columns, rows, note, bars=5)])
