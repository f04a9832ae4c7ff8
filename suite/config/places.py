"""Check of the plug-ins of a configuration, which are built where their modules may be imported."""

from __future__ import annotations

from suite.config.executor import MicrobenchmarkExecutor, PluginExecutor
from suite.config.locate import module
from suite.config.plugins import check_call, check_class, located, own_settings
from suite.config.protocols import ExchangeMethod, System
from suite.config.run import RunConfig, plugins_of

OF_RANKS = ("optimizer", "pruning.ticket", "system", "exchange")  # their modules import torch
OF_TRAINING = "data.source"  # its module may need a package that is only installed where data are read
_LAYOUTS = {
    "memory.layout": ("entries", "moments", "dtype", "half"),
    "system.simulation.layout": ("entries", "moments", "dtype"),
}


def check_parts(config: RunConfig) -> None:
    """Build every plug-in whose module imports no torch. Raises InvalidRequest for the first wrong one."""
    for key, plugin in plugins_of(config):
        if key not in (*OF_RANKS, OF_TRAINING):
            built = plugin.build()
            if key in _LAYOUTS:
                check_call(f"{key}={plugin.target}", built, _LAYOUTS[key])
    if isinstance(config.executor, PluginExecutor | MicrobenchmarkExecutor):
        config.executor.build()
    if config.partitioner is not None:
        config.partitioner.build()


def check_rank_parts(config: RunConfig) -> None:
    """Check the plug-ins whose modules import torch. Raises InvalidRequest for the first wrong one."""
    located("model.network", config.model.network, module)
    system = check_class("system._target_", config.system.target, System, ("world", "config"))
    if settings := vars(system).get("settings"):  # class of the keys that a system adds to its group
        own_settings(settings, config)
    if config.exchange is not None:
        names = ("block", "world", "recorder", "dtype")
        check_class("exchange._target_", config.exchange.target, ExchangeMethod, names)
    config.optimizer.build()
    if config.pruning.ticket is not None:
        config.pruning.ticket.build()
