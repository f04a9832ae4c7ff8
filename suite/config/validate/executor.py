"""Facts about the executor of a run that rules between keys need, and the rules about it."""

from __future__ import annotations

from suite.config.locate import locate
from suite.config.run import RunConfig
from suite.core.errors import Unsupported
from suite.workload.language_model import LanguageModel


def name(config: RunConfig) -> str:
    """Name of the executor in messages."""
    kind = config.executor.kind
    return (config.executor.name or kind) if kind in ("plugin", "microbenchmark") else kind


def ranks(config: RunConfig) -> int:
    """Processes that are started: one for each place of the grid, unless the executor starts another number."""
    return config.executor.ranks or config.grid.build().size


def graph_system_has_graph_executor(config: RunConfig) -> None:
    """A system that trains one whole graph runs under an executor that reads graphs."""
    if config.system.graphs and not config.executor.reads_graphs:
        raise Unsupported(
            "system",
            config.system.name,
            what=f"system={config.system.name} under executor={name(config)}",
            rule="it trains one whole graph",
            legal="executor=full_graph",
        )


def language_model_is_simulated(config: RunConfig) -> None:
    """A LanguageModel has a shape and no layers, so that only the simulator runs it."""
    shape = locate(config.model.shape.target)
    if config.executor.kind != "simulated" and isinstance(shape, type) and issubclass(shape, LanguageModel):
        raise Unsupported(
            "model",
            config.model.name,
            what=f"model={config.model.name} under executor={name(config)}",
            rule="a LanguageModel is simulated only",
            legal="executor=simulated",
        )


def resumed_run_trains_in_its_own_ranks(config: RunConfig) -> None:
    """Only ranks that train write checkpoints."""
    if config.checkpoint.folder is not None and (not config.executor.trains or config.executor.one_process):
        raise Unsupported(
            "checkpoint.folder",
            config.checkpoint.folder,
            what=f"checkpoint.folder with executor={name(config)}",
            rule="no ranks of a system train under it",
            legal=f"executor={name(config)} without checkpoint.folder",
        )


def resumed_system_has_checkpoints(config: RunConfig) -> None:
    """Only systems with checkpoints are resumed."""
    if config.checkpoint.folder is not None and not config.system.can_resume:
        raise Unsupported(
            "checkpoint.folder",
            config.checkpoint.folder,
            what=f"checkpoint.folder with system={config.system.name}",
            rule="only systems on the suite's engine, or with system.supports_checkpoints=true, have checkpoints",
            legal=f"system={config.system.name} without checkpoint.folder",
        )


def replayed_system_is_on_engine(config: RunConfig) -> None:
    """Only systems on the suite's engine are replayed."""
    if config.executor.one_process and not config.system.can_stream:
        raise Unsupported(
            "executor",
            name(config),
            what=f"executor=replay of system={config.system.name}",
            rule="only systems on the suite's engine are replayed",
            legal="system=pipeoptim",
        )
