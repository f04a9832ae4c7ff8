"""Rules about what is trained: numbers of the optimizer, precision, pruning, data, validation."""

from __future__ import annotations

from collections.abc import Mapping

from suite.config.locate import locate
from suite.config.modules import source_module
from suite.config.places import OF_DATA, check_parts
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, UnknownName, Unsupported
from suite.core.units import most_sparse
from suite.core.values import is_number
from suite.pruning.validation import LARGEST, REACHED

HALVES = ("bfloat16", "float16")


def learning_rate_is_not_negative(config: RunConfig) -> None:
    """The learning rate is a number that is not negative, or a function of the update."""
    rate = config.optimizer.arguments.get("lr", 0.0)
    if not isinstance(rate, Mapping) and not (is_number(rate) and rate >= 0):
        raise InvalidRequest(
            "optimizer.lr",
            rate,
            rule="not negative, or a rate of suite.engine.optim.lr_schedule",
            legal="optimizer.lr=0.001",
        )


def half_precision_is_known(config: RunConfig) -> None:
    """Passes next to full-precision weights use a half-precision type."""
    if config.precision.half not in (None, *HALVES):
        raise UnknownName("precision.half", str(config.precision.half), HALVES)


def layout_has_precision(config: RunConfig) -> None:
    """The memory layout holds states of this precision (suite.memory)."""
    layout = config.memory.layout.build()
    layout(entries=1, moments=("moment",), dtype=config.model.dtype, half=config.precision.half)


def loss_scale_is_built(config: RunConfig) -> None:
    """The loss scale accepts its arguments (suite.engine.optim.loss_scaler)."""
    if config.precision.loss_scale:
        config.precision.loss_scale.build()


def system_prunes(config: RunConfig) -> None:
    """Only some systems train pruned networks."""
    pruning, system = config.pruning, config.system
    if pruning.ticket and not system.can_prune:
        raise Unsupported(
            "pruning",
            pruning.name,
            what=f"pruning={pruning.name} under system={system.name}",
            rule="systems on the suite's engine prune",
            legal="system=axonn_samo",
        )


def layout_compresses_pruned_states(config: RunConfig) -> None:
    """The states of a pruned network lie in a compressed layout."""
    if not config.pruning.ticket:
        return
    layout, half = config.memory.layout.build(), config.precision.half
    try:
        layout(entries=2, moments=("moment",), dtype=config.model.dtype, half=half, kept=1, of=2)
    except (InvalidRequest, TypeError) as error:
        raise Unsupported(
            "pruning",
            config.pruning.name,
            what=f"pruning={config.pruning.name} with memory={config.memory.name}",
            rule="compressed states are those of memory=samo",
            legal="memory=samo",
        ) from error


def pruning_leaves_weights(config: RunConfig) -> None:
    """Each weight of a pruned network is small enough to index, and keeps an entry."""
    pruning = config.pruning
    if not pruning.ticket:
        return
    subject = f"pruning={pruning.name} of"
    sizes = [size for layer in config.network().shapes() for size in layer.prunable]
    if not sizes:
        what = f"{subject} model={config.model.name}"
        raise InvalidRequest("pruning", pruning.name, what=what, rule="it has weights to prune")
    if max(sizes) >= LARGEST:
        what = f"{subject} a weight of {max(sizes)} entries"
        raise InvalidRequest("pruning", pruning.name, what=what, rule=REACHED, legal="a narrower model")
    least = min(sizes)
    if not round((1 - pruning.sparsity) * least):
        raise InvalidRequest(
            "pruning.sparsity",
            pruning.sparsity,
            what=f"pruning.sparsity={pruning.sparsity} of a weight of {least} entries",
            rule="each weight keeps an entry",
            legal=f"pruning.sparsity={most_sparse(least)}",
        )


def data_folder_has_its_form(config: RunConfig) -> None:
    """The folder of a published data set is there, in its published form (the module of its source)."""
    if config.data.folder is not None:
        locate(f"{_home(config)}.check_folder")(config.data.name, config.data.folder)


def data_source_fits(config: RunConfig) -> None:
    """The data source can be built; its module may need a package that other data do not need."""
    check_parts(config.plain(), OF_DATA)


def network_reads_data(config: RunConfig) -> None:
    """The network reads data of this shape (the module of their source)."""
    source_module(_home(config)).check_shape(config.data.name, config.data.folder, config.network())


def _home(config: RunConfig) -> str:
    """The module of the data source."""
    return config.data.source.target.rpartition(".")[0]
