"""Communication between ranks: rendezvous, point-to-point transports and collectives."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from suite.comm.p2p.message import INLINE, check_inline
from suite.comm.rendezvous.launcher_env import Start, started
from suite.core.errors import UnknownName, Unsupported
from suite.core.protocols import World

if TYPE_CHECKING:
    from suite.comm.rendezvous.rank_rendezvous import Meeting

TRANSPORTS = ("auto", "mpi", "gloo", "nccl")
ORDERS = ("any", "static")
DEVICES = ("cpu", "cuda")
WITHOUT_MPI = ("torchrun", "slurm")  # launchers whose ranks meet without it

__all__ = ["ORDERS", "TRANSPORTS", "Start", "by_exchange", "check_transport", "here", "launcher_of", "started"]


def here(
    *,
    device: str = "cpu",
    transport: str = "auto",
    order: str = "any",
    tensors: bool = True,
    inline: int = INLINE,
    pair_exchange: bool = True,
    meeting: Meeting | None = None,
) -> World:
    """The world this process was started in.

    A process has one world of a kind: engines made one after the other share it. Raises as check_transport does, and
    InvalidRequest for an `inline` without room for a header.

    Args:
        device: "cpu", or "cuda" with or without a number.
        transport: Backend that carries values between stages. `mpi` and `gloo` run on CPU, and on CUDA through host
            memory (MPI that reads device memory needs no copy); `nccl` runs on CUDA. auto: mpi under mpiexec; under
            torchrun and srun gloo on CPU, nccl on CUDA. One rank alone sends nothing.
        order: any, or static: every stage runs its ops in the order that the checker found. NCCL is always static.
        tensors: False where values are bytes that mean nothing: over MPI they are plain memory, and torch is not
            loaded.
        meeting: Where the ranks of srun meet, where their parent has said so; None: what their environment says.
        inline: Bytes of a message's first part.
        pair_exchange: Whether two ranks of MPI add by an exchange of bytes.
    """
    start = started()
    check_inline(inline)
    check_transport(transport, order, device=device, launcher=start.launcher)
    if transport == "auto":
        elsewhere = "nccl" if device.startswith("cuda") else "gloo"
        transport = "mpi" if start.launcher == "mpi" else elsewhere
    if start.size == 1:
        from suite.comm.p2p.threads import Hub, LoopbackWorld

        return LoopbackWorld(Hub(1), 0, device=device)
    plain = transport == "mpi" and not tensors
    return _world("plain" if plain else transport, device, order, inline, pair_exchange, meeting)


def check_transport(transport: str, order: str, *, device: str, launcher: str) -> None:
    """Raises UnknownName, and Unsupported for a transport that the device or the launcher does not provide. Loads no
    torch.
    """
    for name, value, legal in (("transport", transport, TRANSPORTS), ("order", order, ORDERS)):
        if value not in legal:
            raise UnknownName(name, value, legal)
    if not re.fullmatch(r"cpu|cuda(:\d+)?", str(device)):
        raise UnknownName("device", device, DEVICES)
    if transport == "nccl" and device == "cpu":
        raise Unsupported('transport="nccl" on a CPU', rule="NCCL moves CUDA memory", legal='device="cuda"')
    if transport == "mpi" and launcher in WITHOUT_MPI:
        raise Unsupported(
            f'transport="mpi" under {launcher}',
            rule="ranks of MPI are started by mpiexec, or by srun --mpi=pmix",
            legal="mpiexec as the launcher",
        )


def launcher_of(starter: str, mpi: str | None = None) -> str:
    """The launcher that tells ranks who they are, as Start.launcher names it. mpi: how srun starts MPI ranks."""
    if starter == "srun":
        return "mpi" if mpi else "slurm"
    return {"mpiexec": "mpi"}.get(starter, starter)


def by_exchange(transport: str, launcher: str, device: str, *, pair_exchange: bool) -> bool:
    """Whether two ranks add by an exchange of bytes (comm.mpi), with room for the other's part."""
    return transport in ("auto", "mpi") and launcher == "mpi" and pair_exchange and device == "cpu"


@cache
def _world(transport: str, device: str, order: str, inline: int, pair_exchange: bool, meeting: Meeting | None) -> World:
    if transport == "mpi":
        from suite.comm.p2p.mpi import MpiWorld

        return MpiWorld(device=device, order=order, inline=inline, pair_exchange=pair_exchange)
    if transport == "plain":
        from suite.comm.p2p.host_memory import PlainWorld

        return PlainWorld(device=device, order=order, inline=inline, pair_exchange=pair_exchange)
    from suite.comm.collective.process_group import TorchWorld

    return TorchWorld(started(), device=device, transport=transport, order=order, inline=inline, meeting=meeting)
