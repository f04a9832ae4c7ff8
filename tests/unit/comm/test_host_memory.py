"""Plain memory over the channels of tensors, byte for byte and without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mpi4py import MPI

from suite.comm.p2p.host_memory import HostBuffer, HostDevice
from suite.comm.p2p.message import ALIGN, RAW_BYTES, decode, encode
from suite.comm.p2p.mpi import _Inbound, _Outbound
from suite.comm.p2p.polling import wait_until
from suite.core.op import Kind, Op

ROOT = Path(__file__).resolve().parents[3]
SIZES = (0, 1, 100, 4 * ALIGN, 100_000)


def filled(size: int) -> HostBuffer:
    buffer = HostBuffer(size)
    memoryview(buffer.memory)[:] = bytes((7 * index + size) % 251 for index in range(size))
    return buffer


def test_header_marks_raw_bytes() -> None:
    op = Op(3, Kind.BACKWARD, 12)
    head = encode(op, (HostBuffer(5), HostBuffer(0)), True)
    assert decode(head) == (op, True, ((RAW_BYTES, (5,)), (RAW_BYTES, (0,))), len(head))


def test_buffers_arrive_byte_for_byte() -> None:
    comm = MPI.COMM_SELF.Dup()
    inbound, outbound = _Inbound(comm, 0, 4 * ALIGN, HostDevice, HostBuffer), _Outbound(comm, 0, 4 * ALIGN, HostBuffer)
    mailbox: dict[Op, tuple[HostBuffer, ...]] = {}

    def progress() -> None:
        inbound.poll(mailbox)
        outbound.poll()

    for index, size in enumerate(SIZES):
        value = filled(size)
        outbound.send(Op(0, Kind.FORWARD, index), (value,))
        requests = outbound.sending[-1][0]
        assert len(requests) == (1 if size <= 100 else 2), size
        assert wait_until(lambda: bool(mailbox) and not outbound.sending, progress, timeout=20)
        ((op, (arrived,)),) = mailbox.items()
        mailbox.clear()
        assert op.index == index
        assert arrived is not value
        assert bytes(arrived.memory) == bytes(value.memory)
    inbound.close()
    comm.Free()


def test_emulated_ranks_load_no_torch() -> None:
    """Sixteen such ranks start in the time of one rank with torch."""
    names = (
        "suite.runner.ranks.rank",
        "suite.runner.executors.emulated_rank",
        "suite.comm.p2p.host_memory",
        "suite.simulate.cost.measured",
        "baselines.gpipe",
    )
    code = (
        f"import sys\nfor name in {names}: __import__(name)\nprint([name for name in sys.modules if name == 'torch'])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "[]"
