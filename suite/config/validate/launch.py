"""Rules about how ranks are started, supervised and connected."""

from __future__ import annotations

from suite.comm.world import check_transport, launcher_kind
from suite.config.launch import Launch
from suite.config.run import RunConfig
from suite.config.validate.executor import ranks
from suite.core.errors import InvalidRequest, Unsupported


def ranks_fit_launch(config: RunConfig) -> None:
    """A launch starts at most launch.max_ranks ranks."""
    launch, count = config.launch, ranks(config)
    if count > launch.max_ranks:
        raise InvalidRequest(
            "launch.max_ranks",
            launch.max_ranks,
            what=f"{count} ranks ({config.grid.typed})",
            rule=f"launch={launch.name} starts at most launch.max_ranks={launch.max_ranks}",
            legal=f"launch.max_ranks={count}, or a smaller grid",
        )


def heartbeats_fit_timeout(config: RunConfig) -> None:
    """A rank sends at least two heartbeats within the timeout."""
    interval, timeout = config.launch.heartbeat_interval, config.launch.heartbeat_timeout
    if timeout is not None and timeout < 2 * interval:
        raise InvalidRequest(
            "launch.heartbeat_timeout",
            timeout,
            what=f"launch.heartbeat_timeout={timeout:g}",
            rule=f"null, or at least twice launch.heartbeat_interval={interval:g} seconds",
            legal=f"launch.heartbeat_timeout={12 * interval:g}",
        )


def srun_has_places(config: RunConfig) -> None:
    """The nodes of a job step have a place for each rank."""
    if config.launch.launcher == "srun":
        nodes_have_places(config.launch, ranks(config))


def nodes_have_places(launch: Launch, count: int) -> None:
    """Raises InvalidRequest unless launch.nodes with launch.tasks_per_node have places for `count` ranks."""
    nodes, per_node = launch.nodes, launch.tasks_per_node
    if nodes and per_node and nodes * per_node < count:
        raise InvalidRequest(
            "launch.nodes",
            nodes,
            what=f"{count} ranks on launch.nodes={nodes} with launch.tasks_per_node={per_node}",
            rule="nodes * tasks_per_node is at least the number of ranks",
            legal=f"launch.nodes={-(-count // per_node)}",
        )


def transport_suits_launch(config: RunConfig) -> None:
    """The transport exists on the device and under the launcher (suite.comm)."""
    comm, launch = config.comm, config.launch
    launcher = launcher_kind(launch.launcher, launch.mpi)
    check_transport(comm.transport, comm.order, device=launch.device, launcher=launcher)


def cuda_has_no_memory_limit(config: RunConfig) -> None:
    """A process that uses CUDA reserves more address space than any limit: the device's whole memory, and more."""
    launch = config.launch
    if launch.device == "cuda" and launch.memory_limit is not None:
        raise Unsupported(
            "launch.memory_limit",
            launch.memory_limit,
            what=f"launch.memory_limit={launch.memory_limit} with launch.device=cuda",
            rule="CUDA reserves the address space of all its devices",
            legal="launch.memory_limit=null",
        )


def draws_where_it_computes(config: RunConfig) -> None:
    """A GPU draws weights and masks of runs on a GPU alone."""
    ticket = config.pruning.ticket.arguments if config.pruning.ticket else {}
    for key, device in (
        ("launch.draws_on", config.launch.draws_on),
        ("pruning.ticket.draws_on", ticket.get("draws_on")),
    ):
        if device == "cuda" and config.launch.device != "cuda":
            raise InvalidRequest(key, device, rule="cuda only with launch.device=cuda", legal=f"{key}=cpu")


def torchrun_does_not_bind(config: RunConfig) -> None:
    """torchrun does not bind ranks to cores."""
    launch = config.launch
    if launch.binding != "none" and launch.launcher == "torchrun":
        raise Unsupported(
            "launch.binding",
            launch.binding,
            what=f"launch.binding={launch.binding} under torchrun",
            rule="mpiexec and srun bind ranks",
            legal="launch.binding=none",
        )
