"""Search for the fastest grid and microbatch: predict every plan, then measure the best few in interleaved rounds.

AxoNN (Section VII) tunes each framework before timing it, because a comparison with untuned systems would be unfair.
Plans that cannot run, or do not fit a device, are listed with the reason and not measured.
"""

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
from suite.core.reasons import format_traceback, headline
from suite.core.record import Outcome, Record
from suite.core.units import si
from suite.core.words import shell_line
from suite.memory import mixed
from suite.runner import estimate
from suite.runner.executors import registry
from suite.runner.interleave import measure
from suite.runner.keys_read import below
from suite.runner.override_files import TYPED
from suite.runner.progress import Progress
from suite.runner.runs import Run, expand
from suite.runner.system_schedule import schedule_of
from suite.simulate import search
from suite.simulate.block_model import SimulationPlan, SystemModel
from suite.simulate.executor import Simulated
from suite.stats.spread import quartiles
from suite.workload import Transformer

TUNED_KEYS = ("grid", "batch.microbatch", "experiment")  # keys that the tuner sets, so the command line may not
PREDICTION_KEYS = ("machine", "efficiency")  # keys that only predictions read
TUNER_KEYS = ("tune", "schedule")  # keys that the tuner reads, even if a run does not
# keys left out of a plan's file: they do not affect training, or only the command line may set them
OMITTED_KEYS = (*PREDICTION_KEYS, "reports", "measure", "scale", "tag", "tune", *TYPED)
SIMULATED, CLOSED_FORM = "simulated", "closed form"


@dataclass(frozen=True)
class Candidate:
    """One plan of a system.

    Attributes:
        run: Run of the plan.
        seconds: Predicted seconds of a batch; inf without a prediction.
        method: Method of the prediction.
        reason: Reason for not measuring it; empty for a plan that may be measured.
    """

    run: Run
    seconds: float = math.inf
    method: str = ""
    reason: str = ""

    @property
    def plan(self) -> str:
        return f"{self.run.grid} microbatch {self.run.config.batch.microbatch}"


@dataclass(frozen=True)
class Choice:
    """The selected plan, and all plans whose times do not differ from the best, as indices in predicted order."""

    selected: int
    tied: tuple[int, ...]

    @property
    def decided(self) -> bool:
        return len(self.tied) == 1


@dataclass(frozen=True)
class TuningResult:
    """Result of tuning one system.

    Attributes:
        system: Name of the system.
        devices: Number of ranks of each plan.
        candidates: Plans in predicted order; those that cannot be measured come last.
        measured: Records of the first candidates.
        choice: Selected plan; None if no measurement succeeded.
    """

    system: str
    devices: int
    candidates: tuple[Candidate, ...]
    measured: tuple[Record, ...]
    choice: Choice | None

    @property
    def selected(self) -> Candidate | None:
        return self.candidates[self.choice.selected] if self.choice else None


def tune(system: str, overrides: Sequence[str], progress: Progress) -> TuningResult:
    """Find the fastest plan of `system` on `tune.devices` ranks.

    The machine and efficiency of the prediction come from the configuration. Every run leaves a record of
    experiment=tuning.

    Args:
        system: Name of the system.
        overrides: Other overrides of the command line.
        progress: Progress line.

    Raises:
        InvalidRequest: No plan can satisfy the overrides.
    """
    base_overrides = [f"system={system}", *overrides]
    settings = tune_settings(base_overrides)
    ranking = rank_candidates(list_candidates(base_overrides, settings.devices))
    measurable = [candidate for candidate in ranking if not candidate.reason][: settings.candidates]
    records = measure_together([candidate.run for candidate in measurable], progress)
    choice = choose([batch_times(record) for record in records])
    return TuningResult(system, settings.devices, tuple(ranking), tuple(records), choice)


def tune_settings(overrides: Sequence[str]) -> Tune:
    """The `tune` settings. Raises InvalidRequest for a count below one, and for an override of a tuned key."""
    for override in overrides:
        if not drop_keys([override], TUNED_KEYS):
            raise InvalidRequest(override, rule="the tuner chooses the grid and the microbatch", legal="tune.devices=2")
    data = composed(overrides)
    config, settings = checks.checked_run(data), checks.checked(checks.Tuning, data).tune
    if not config.executor.starts_ranks:
        raise InvalidRequest(
            f"executor={config.executor.name} under the tuner", rule="the tuner measures ranks", legal="executor=real"
        )
    return settings


def drop_keys(overrides: Sequence[str], names: Sequence[str]) -> list[str]:
    """The overrides that set none of these keys or groups."""
    return [override for override in overrides if not below(override.lstrip("+").partition("=")[0], names)]


# -- candidates ----------------------------------------------------------------------------------------------------


def grids(devices: int, *, tensor: bool) -> Iterator[Grid]:
    """All grids of `devices` ranks. With `tensor`, layers may be split too (tensor parallelism)."""
    for split in search.divisors(devices) if tensor else [1]:
        for inter in search.divisors(devices // split):
            yield Grid(data=devices // (split * inter), inter=inter, tensor=split)


def list_candidates(overrides: Sequence[str], devices: int) -> list[Candidate]:
    """Candidates for every grid of `devices` ranks and every microbatch that divides the batch, with predictions.

    Raises InvalidRequest if the machine of the prediction is unknown.
    """
    config = resolve([*drop_keys(overrides, ["executor"]), "executor=simulated"])
    predictor = registry.without_ranks(config.executor)
    assert isinstance(predictor, Simulated)
    size = config.batch.size
    sizes = [microbatch for microbatch in search.MICROBATCHES if size % microbatch == 0]
    plans = product(grids(devices, tensor=bool(config.system.tensor)), sizes)
    return [predict_candidate(plan_run(overrides, *plan), predictor) for plan in plans]


def plan_run(overrides: Sequence[str], grid: Grid, microbatch: int) -> Run:
    """The run of one plan. It may be refused."""
    grid_overrides = [f"grid.data={grid.data}", f"grid.inter={grid.inter}", f"grid.tensor={grid.tensor}"]
    other_overrides = drop_keys(overrides, PREDICTION_KEYS)
    (run,) = expand(
        ["experiment=tuning", *other_overrides, *grid_overrides, f"batch.microbatch={microbatch}"],
        caller_keys=TUNER_KEYS,
    )
    return run


def predict_candidate(run: Run, predictor: Simulated) -> Candidate:
    """Predict the batch time of a plan.

    A system with `system.simulation` is predicted by the simulator. Any other system is predicted by the closed form of
    its schedule. A plan whose predicted memory exceeds the memory of a device is not measured. The memory is predicted
    by suite.memory where it models the system. Otherwise it is predicted by the simulated system, which stores its
    states in mixed precision.
    """
    config, machine, efficiency = run.config, predictor.machine, predictor.efficiency
    if run.refusal is not None:
        return Candidate(run, reason=f"refused: {headline(str(run.refusal))}")
    if not isinstance(config.model.shape.build(), Transformer):
        return Candidate(run, method="not predicted")
    simulated = config.system.simulation is not None
    try:
        plan = predictor.of(config) if simulated else closed_form_plan(config)
        has_model = config.system.has_memory_model or not simulated
        peak = max(budget.peak for budget in estimate.budgets(config)) if has_model else plan.peak
        where = machine, efficiency
        seconds = search.run(plan, *where).makespan if simulated else search.estimate(plan, *where)
    except SuiteError as error:
        return Candidate(run, reason=f"not predicted: {error}")
    except Exception as error:  # a failed prediction must not end the others
        return Candidate(run, reason=f"not predicted: {headline(format_traceback(error))}")
    candidate = Candidate(run, seconds, SIMULATED if simulated else CLOSED_FORM)
    if peak > machine.memory:
        reason = f"does not fit: {si(peak, 'B')} on a device of {machine.name} with {si(machine.memory, 'B')}"
        return replace(candidate, reason=reason)
    return candidate


def closed_form_plan(config: RunConfig) -> SimulationPlan:
    """Plan of a system without a model of its own.

    It has the schedule of the ranks, saves every activation, and sends mixed-precision bytes like all simulated
    systems.
    """
    system = SystemModel(config.system.name, schedule_of(config), mixed, activation_checkpointing="none", tensor=True)
    shape, batch = config.model.shape.build(), config.batch
    assert isinstance(shape, Transformer)
    return SimulationPlan(shape, system, config.grid.build(), batch.size, batch.microbatch, config.split)


def rank_candidates(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates by predicted time; those that cannot be measured come last."""
    return sorted(candidates, key=lambda candidate: (bool(candidate.reason), candidate.seconds))


# -- measurement ---------------------------------------------------------------------------------------------------


def measure_together(runs: Sequence[Run], progress: Progress) -> list[Record]:
    """Measure all runs in the same interleaved rounds.

    Records of different measurements are not comparable. If earlier records come from several, all runs are repeated.
    """
    records = measure(runs, progress)
    if len({record.provenance.get("turns") for record in records if batch_times(record)}) > 1:
        repeated = [replace(run, outline=run.outline.model_copy(update={"rerun": "all"})) for run in runs]
        records = measure(repeated, progress)
    return records


def batch_times(record: Record) -> tuple[float, ...]:
    """Seconds of each batch; none for a run with an outcome other than `ok`."""
    metric = record.metrics.get("batch_time")
    return tuple(metric.values) if metric and record.outcome is Outcome.OK else ()


def choose(measured: Sequence[Sequence[float]]) -> Choice | None:
    """Select a plan by the median batch time. None without samples.

    A plan ties with the best if its median exceeds the best by at most the wider of both interquartile ranges. Among
    tied plans, the first in predicted order is selected.

    Args:
        measured: Batch times of each plan, in predicted order.
    """
    indices = [index for index, values in enumerate(measured) if values]
    if not indices:
        return None
    medians = {index: median(measured[index]) for index in indices}
    ranges = {index: high - low for index in indices for low, _, high in [quartiles(measured[index])]}
    best = min(indices, key=lambda index: medians[index])
    tied = [i for i in indices if i == best or medians[i] - medians[best] <= max(ranges[i], ranges[best])]
    return Choice(tied[0], tuple(tied))


# -- output --------------------------------------------------------------------------------------------------------


def report_lines(tuned: TuningResult) -> list[str]:
    """A summary, a line per candidate with its prediction and measurement, and the decision."""
    count = {"refused": 0, "does not fit": 0}
    for candidate in tuned.candidates:
        kind = candidate.reason.partition(":")[0]
        count[kind] = count.get(kind, 0) + bool(kind)
    left_out = "".join(f", {number} {kind}" for kind, number in count.items() if kind and number)
    head = f"{tuned.system}, {_devices(tuned)}: {len(tuned.candidates)} plans{left_out}, {len(tuned.measured)} measured"
    width = max((len(candidate.plan) for candidate in tuned.candidates), default=0)
    rows = [f"  {_candidate_line(tuned, index, width)}" for index in range(len(tuned.candidates))]
    return [head, *rows, f"  {decision(tuned)}"]


def _candidate_line(tuned: TuningResult, index: int, width: int) -> str:
    candidate = tuned.candidates[index]
    place = " -" if candidate.reason else f"{index + 1:2}"
    head = f"{place}  {candidate.plan:<{width}}"
    if candidate.method:
        seconds = "" if candidate.method == "not predicted" else f"{_ms(candidate.seconds)} "
        head += f"  {seconds}{candidate.method}"
    if candidate.reason:
        return f"{head}  {candidate.reason}"
    if index >= len(tuned.measured):
        return f"{head}, not measured"
    record, choice = tuned.measured[index], tuned.choice
    if not (values := batch_times(record)):
        return f"{head}, measured: {record.outcome.value}, {headline(record.reason, nothing='no samples')}"
    low, middle, high = quartiles(values)
    note = record.metrics["batch_time"].note
    text = f"{head}, measured {_ms(middle)}, half of {len(values)} in {1e3 * low:.1f} to {_ms(high)}"
    selected = choice is not None and choice.selected == index
    return f"{text}{', selected' if selected else ', not selected'}{f' ({note})' if note else ''}"


def decision(tuned: TuningResult) -> str:
    """The decision in a sentence."""
    choice = tuned.choice
    if choice is None:
        return "no plan is selected: none was measured"
    names = [tuned.candidates[index].plan for index in choice.tied]
    if choice.decided:
        return f"decided: {names[0]}"
    return f"undecided: {' and '.join(names)} are within their spread; {names[0]} has the best prediction"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _devices(tuned: TuningResult) -> str:
    model = tuned.candidates[0].run.config.model.name if tuned.candidates else "no model"
    return f"{model} on {tuned.devices} {'device' if tuned.devices == 1 else 'devices'}"


def write_plan(tuned: TuningResult, overrides: Sequence[str]) -> Path | None:
    """Write the selected plan as a list of overrides, with those of the command line that determine training.

    Returns:
        The file, which `suite run @FILE` and entries of `experiment.runs` accept. None without a selected plan.
    """
    selected = tuned.selected
    if selected is None:
        return None
    config, grid = selected.run.config, selected.run.grid
    model = config.model.name
    other_overrides = [o for o in drop_keys(overrides, OMITTED_KEYS) if not o.startswith(("system=", "model="))]
    grid_overrides = [f"grid.{axis}={getattr(grid, axis)}" for axis in ("data", "inter", "tensor")]
    values = [f"system={tuned.system}", f"model={model}", *other_overrides, *grid_overrides]
    values.append(f"batch.microbatch={config.batch.microbatch}")
    precision = f"-{config.precision.name}" if config.precision.half else ""
    path = Path(config.reports) / "tuned" / f"{tuned.system}-{model}-{tuned.devices}{precision}.yaml"
    comments = [f"# {line.strip()}" for line in report_lines(tuned)]
    text = "\n".join([*comments, f"# {run_line(path, overrides)}", yaml.safe_dump(values, width=1000)])
    write_atomically(path, text.encode())
    return path


def run_line(path: Path, overrides: Sequence[str]) -> str:
    """The command line that runs the plan in `path`, with the overrides that must be typed."""
    typed = [word for word in overrides if below(word.lstrip("+").partition("=")[0], ("reports", *TYPED))]
    return shell_line("run", [f"@{path}", *typed])
