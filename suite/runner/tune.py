"""Search for the fastest grid and microbatch: predict every plan, then measure the best few in interleaved rounds.

Each framework is tuned before it is timed (AxoNN, Section VII): a comparison of a tuned system with untuned ones would
say little. Plans that cannot run, or do not fit a device, are listed with the reason and not measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median

import yaml

from suite.config import checks
from suite.config.commands import Tune
from suite.config.compose import composed, resolve
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, SuiteError
from suite.core.files import write_atomically
from suite.core.grid import Grid
from suite.core.reasons import headline, whole
from suite.core.record import Outcome, Record
from suite.core.units import si
from suite.core.words import shell_line
from suite.memory import mixed
from suite.runner import estimate
from suite.runner.executors import registry
from suite.runner.interleave import measure
from suite.runner.override_files import TYPED
from suite.runner.progress import Progress
from suite.runner.runs import Run, expand
from suite.runner.system_schedule import schedule_of
from suite.simulate import search
from suite.simulate.block_model import Modelled, SimulationPlan
from suite.simulate.executor import Simulated
from suite.stats.spread import quartiles
from suite.workload import Transformer

CHOSEN = ("grid", "batch.microbatch", "experiment")  # what the command line leaves to the tuner
PREDICTS = ("machine", "stack")  # what a prediction is made with; a run on ranks has none
TAKEN = ("tune", "schedule")  # the tuner reads them, whatever a run does
# does not influence training, or must be typed
LEFT_OUT = (*PREDICTS, "reports", "measure", "scale", "tag", "tune", *TYPED)
SIMULATED, CLOSED_FORM = "simulated", "closed form"


@dataclass(frozen=True)
class Candidate:
    """One plan of a system.

    Attributes:
        seconds: Of a batch, predicted (inf where nothing predicts it).
        by: How.
        reason: Why it is not measured, empty where it may be.
    """

    run: Run
    seconds: float = math.inf
    by: str = ""
    reason: str = ""

    @property
    def plan(self) -> str:
        return f"{self.run.grid} microbatch {self.run.config.batch.microbatch}"


@dataclass(frozen=True)
class Choice:
    """Of measured candidates in predicted order: the kept plan, and the plans that measure no different."""

    kept: int
    near: tuple[int, ...]

    @property
    def decided(self) -> bool:
        return len(self.near) == 1


@dataclass(frozen=True)
class Tuned:
    """candidates: those that may run in predicted order, then those that may not; measured: a record for each of the
    first of them; choice: None where none of these went well."""

    system: str
    devices: int
    candidates: tuple[Candidate, ...]
    measured: tuple[Record, ...]
    choice: Choice | None

    @property
    def kept(self) -> Candidate | None:
        return self.candidates[self.choice.kept] if self.choice else None


def tune(system: str, overrides: Sequence[str], progress: Progress) -> Tuned:
    """The plan of `system` that is quickest on `tune.devices` ranks, under the command line's other `overrides`.

    Machine and stack of the prediction are the config's. Every run leaves its record, as one of experiment=tuning.
    Raises InvalidRequest for a problem that no plan can solve."""
    base_overrides = [f"system={system}", *overrides]
    settings = checked(base_overrides)
    ranking = ranked(candidates(base_overrides, settings.devices))
    able = [candidate for candidate in ranking if not candidate.reason][: settings.candidates]
    records = in_turns([candidate.run for candidate in able], progress)
    choice = choose([samples(record) for record in records])
    return Tuned(system, settings.devices, tuple(ranking), tuple(records), choice)


def checked(overrides: Sequence[str]) -> Tune:
    """The config's `tune`. Raises InvalidRequest for a count below one, and where the command line chooses what is
    tuned."""
    for override in overrides:
        if not without([override], CHOSEN):
            raise InvalidRequest(override, rule="grid and microbatch are what is tuned", legal="tune.devices=2")
    data = composed(overrides)
    config, settings = checks.checked_run(data), checks.checked(checks.Tuning, data).tune
    if not config.executor.starts_ranks:
        raise InvalidRequest(
            f"executor={config.executor.name} under the tuner", rule="it measures ranks", legal="executor=real"
        )
    return settings


def _below(key: str, names: Sequence[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def without(overrides: Sequence[str], names: Sequence[str]) -> list[str]:
    """The overrides that name none of these keys or groups."""
    return [override for override in overrides if not _below(override.lstrip("+").partition("=")[0], names)]


# -- candidates ----------------------------------------------------------------------------------------------------


def grids(devices: int, *, tensor: bool) -> Iterator[Grid]:
    """Every way to spread a pipeline and its replicas over all devices; layers are split where a system can."""
    for split in search.divisors(devices) if tensor else [1]:
        for inter in search.divisors(devices // split):
            yield Grid(data=devices // (split * inter), inter=inter, tensor=split)


def candidates(overrides: Sequence[str], devices: int) -> list[Candidate]:
    """Every grid of `devices` ranks with every microbatch that divides the batch, predicted or with the reason why
    not. Raises InvalidRequest where the machine of the prediction is not known."""
    config = resolve([*without(overrides, ["executor"]), "executor=simulated"])
    predictor = registry.without_ranks(config.executor)
    assert isinstance(predictor, Simulated)
    size = config.batch.size
    sizes = [microbatch for microbatch in search.MICROBATCHES if size % microbatch == 0]
    every = product(grids(devices, tensor=bool(config.system.tensor)), sizes)
    return [predicted(planned(overrides, *plan), predictor) for plan in every]


def planned(overrides: Sequence[str], grid: Grid, microbatch: int) -> Run:
    """The run of one plan, refused or not."""
    spread = [f"grid.data={grid.data}", f"grid.inter={grid.inter}", f"grid.tensor={grid.tensor}"]
    fixed_overrides = [*without(overrides, PREDICTS), *spread, f"batch.microbatch={microbatch}"]
    (run,) = expand(["experiment=tuning", *fixed_overrides], taken=TAKEN)
    return run


def predicted(run: Run, predictor: Simulated) -> Candidate:
    """Its batch in virtual time where its system is simulated (system.simulation), else by the closed form of its
    own schedule. Plans that do not fit a device of the machine are not measured; for memory the suite's own budget
    precedes the budget of a twin, which keeps its states in mixed precision."""
    config, machine, stack = run.config, predictor.machine, predictor.stack
    if run.refusal is not None:
        return Candidate(run, reason=f"refused: {headline(str(run.refusal))}")
    if not isinstance(config.model.shape.build(), Transformer):
        return Candidate(run, by="not predicted")
    twin = config.system.simulation is not None
    try:
        plan = predictor.of(config) if twin else stand_in(config)
        has_model = config.system.has_memory_model or not twin
        peak = max(budget.peak for budget in estimate.budgets(config)) if has_model else plan.peak
        seconds = search.run(plan, machine, stack).makespan if twin else search.estimate(plan, machine, stack)
    except SuiteError as error:
        return Candidate(run, reason=f"not predicted: {error}")
    except Exception as error:  # a fault of one plan's prediction must not end the others'
        return Candidate(run, reason=f"not predicted: {headline(whole(error))}")
    candidate = Candidate(run, seconds, SIMULATED if twin else CLOSED_FORM)
    if peak > machine.memory:
        reason = f"does not fit: {si(peak, 'B')} on a device of {machine.name} with {si(machine.memory, 'B')}"
        return replace(candidate, reason=reason)
    return candidate


def stand_in(config: RunConfig) -> SimulationPlan:
    """A plan of a system without a model: the schedule that its ranks run, every activation kept, and the bytes of
    mixed precision, which the other systems' twins send too.
    """
    system = Modelled(config.system.name, schedule_of(config), mixed, activation_checkpointing="none", tensor=True)
    shape, batch = config.model.shape.build(), config.batch
    assert isinstance(shape, Transformer)
    return SimulationPlan(shape, system, config.grid.build(), batch.size, batch.microbatch, config.split)


def ranked(found: Sequence[Candidate]) -> list[Candidate]:
    """The quickest by prediction first; what cannot be measured last."""
    return sorted(found, key=lambda candidate: (bool(candidate.reason), candidate.seconds))


# -- measured ------------------------------------------------------------------------------------------------------


def in_turns(runs: Sequence[Run], progress: Progress) -> list[Record]:
    """A record per run, all measured in turns with one another: records of several calls are no comparison, and then
    all are made again."""
    records = measure(runs, progress)
    if len({record.provenance.get("turns") for record in records if samples(record)}) > 1:
        anew = [replace(run, outline=run.outline.model_copy(update={"rerun": "all"})) for run in runs]
        records = measure(anew, progress)
    return records


def samples(record: Record) -> tuple[float, ...]:
    """Seconds per batch; none of a run that did not end well."""
    metric = record.metrics.get("batch_time")
    return tuple(metric.values) if metric and record.outcome is Outcome.OK else ()


def choose(measured: Sequence[Sequence[float]]) -> Choice | None:
    """The best of candidates in predicted order, by the median of their samples; none without samples.

    A plan measures no different if its median is behind the best by at most the wider of both interquartile ranges.
    Of all these the plan that was predicted best is kept."""
    having = [index for index, values in enumerate(measured) if values]
    if not having:
        return None
    middle = {index: median(measured[index]) for index in having}
    width = {index: high - low for index in having for low, _, high in [quartiles(measured[index])]}
    best = min(having, key=lambda index: middle[index])
    near = [i for i in having if i == best or middle[i] - middle[best] <= max(width[i], width[best])]
    return Choice(near[0], tuple(near))


# -- what is left of it --------------------------------------------------------------------------------------------


def lines(tuned: Tuned) -> list[str]:
    """A line per candidate: its predicted order and time, what was measured, whether it is kept; then the decision."""
    count = {"refused": 0, "does not fit": 0}
    for candidate in tuned.candidates:
        kind = candidate.reason.partition(":")[0]
        count[kind] = count.get(kind, 0) + bool(kind)
    left_out = "".join(f", {number} {kind}" for kind, number in count.items() if kind and number)
    head = f"{tuned.system}, {_devices(tuned)}: {len(tuned.candidates)} plans{left_out}, {len(tuned.measured)} measured"
    width = max((len(candidate.plan) for candidate in tuned.candidates), default=0)
    rows = [f"  {_line(tuned, index, width)}" for index in range(len(tuned.candidates))]
    return [head, *rows, f"  {verdict(tuned)}"]


def _line(tuned: Tuned, index: int, width: int) -> str:
    candidate = tuned.candidates[index]
    place = " -" if candidate.reason else f"{index + 1:2}"
    head = f"{place}  {candidate.plan:<{width}}"
    if candidate.by:
        head += f"  {_ms(candidate.seconds)} {candidate.by}" if candidate.by != "not predicted" else "  not predicted"
    if candidate.reason:
        return f"{head}  {candidate.reason}"
    if index >= len(tuned.measured):
        return f"{head}, not measured"
    record, choice = tuned.measured[index], tuned.choice
    if not (values := samples(record)):
        return f"{head}, measured: {record.outcome.value}, {headline(record.reason, nothing='no samples')}"
    low, middle, high = quartiles(values)
    note = record.metrics["batch_time"].note
    text = f"{head}, measured {_ms(middle)}, half of {len(values)} in {1e3 * low:.1f} to {_ms(high)}"
    is_kept = choice is not None and choice.kept == index
    return f"{text}{', kept' if is_kept else ', not kept'}{f' ({note})' if note else ''}"


def verdict(tuned: Tuned) -> str:
    """The decision, in a sentence."""
    choice = tuned.choice
    if choice is None:
        return "nothing is kept: no plan was measured"
    names = [tuned.candidates[index].plan for index in choice.near]
    if choice.decided:
        return f"decided: {names[0]}"
    return f"undecided: {' and '.join(names)} are within their spread; {names[0]} was predicted before the others"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _devices(tuned: Tuned) -> str:
    model = tuned.candidates[0].run.config.model.name if tuned.candidates else "no model"
    return f"{model} on {tuned.devices} {'device' if tuned.devices == 1 else 'devices'}"


def write(tuned: Tuned, overrides: Sequence[str]) -> Path | None:
    """Write the kept plan as a list of overrides, with the overrides of the command line that determine training;
    returns the file, which `suite run @FILE` and an entry of `experiment.runs` take. None where nothing is kept.
    """
    kept_index = tuned.kept
    if kept_index is None:
        return None
    config, grid = kept_index.run.config, kept_index.run.grid
    model = config.model.name
    file_name = [f"system={tuned.system}", f"model={model}"]
    overrides_kept = [o for o in without(overrides, LEFT_OUT) if not o.startswith(("system=", "model="))]
    spread = [f"grid.{axis}={getattr(grid, axis)}" for axis in ("data", "inter", "tensor")]
    values = [*file_name, *overrides_kept, *spread, f"batch.microbatch={config.batch.microbatch}"]
    precision = f"-{config.precision.name}" if config.precision.half else ""
    path = Path(config.reports) / "tuned" / f"{tuned.system}-{model}-{tuned.devices}{precision}.yaml"
    comments = [f"# {line.strip()}" for line in lines(tuned)]
    text = "\n".join([*comments, f"# {again(path, overrides)}", yaml.safe_dump(values, width=1000)])
    write_atomically(path, text.encode())
    return path


def again(path: Path, overrides: Sequence[str]) -> str:
    """The command line that runs the plan in `path`, with what `write` has left out and a run needs all the same."""
    words_kept = [word for word in overrides if _below(word.lstrip("+").partition("=")[0], ("reports", *TYPED))]
    return shell_line("run", [f"@{path}", *words_kept])
