"""Simulated epoch of full-graph training: products, row exchange, reductions and memory.

An epoch is the list of sparse products of the network's shape (suite.workload.gcn). Each product waits for its rows,
and then for the slowest process: the next exchange begins when every process has its product. Memory bandwidth bounds
local work: each entry of the matrix is read together with its row of X, without a cache.

`published` models the authors' code. It has other costs than the suite's engine and the same results: one sparse
product per block row, received rows copied into a zeroed block of full height, entries with two 64-bit indices, and
the local matrix stored both whole and in blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from suite.core.errors import DoesNotFit, InvalidRequest
from suite.gnn.plan import Volumes
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.network.exchange import Wires
from suite.simulate.network.machine import Machine
from suite.workload.gcn import GCN

VALUE = 4  # bytes of a number in single precision
INDEX = 4  # bytes of an index of the engine's
LOOSE = 20  # bytes of an entry with two 64-bit indices
STATES = 4  # copies of the weights: weight, gradient, Adam's two moments
# kernels of one block: a product that adds; zeros, a copy of received rows and that product
KERNELS = {"oblivious": 1, "aware": 3}


@dataclass(frozen=True, slots=True)
class Epoch:
    """Seconds of one epoch by phase.

    Attributes:
        exchange: Exchange of rows of H and G.
        sums: All-reduces over replicas (inconsistency G2).
        weights: All-reduces of weight gradients.
        products: Sparse products, and the copies for them.
        dense: Products with weights.
    """

    exchange: float
    sums: float
    weights: float
    products: float
    dense: float

    @property
    def communication(self) -> float:
        return self.exchange + self.sums + self.weights

    @property
    def local(self) -> float:
        return self.products + self.dense

    @property
    def seconds(self) -> float:
        return self.communication + self.local

    def phases(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, eq=False)
class FullGraph:
    """A network on a distributed graph.

    Attributes:
        volumes: Communication volume of a forward product, in vertices and entries of the modelled graph.
        back: Volume of a backward product of a directed graph.
        form: Form of the exchange (suite.simulate.network.exchange.FORMS).
        published: Whether local work is that of the published code.
        value: Bytes of a number.
    """

    volumes: Volumes
    shape: GCN
    features: int
    classes: int
    form: str
    published: bool = False
    back: Volumes | None = None
    value: int = VALUE

    @cached_property
    def products(self) -> Sequence[tuple[FullGraph, int]]:
        """Sparse products of an epoch: the volume of each, forward or backward, and its columns."""
        reverse = replace(self, volumes=self.back, back=None) if self.back else self
        pairs = self.shape.products(self.features, self.classes)
        return [(reverse if one.backward else self, one.width) for one in pairs]

    @property
    def widths(self) -> Sequence[int]:
        """Columns of the matrix that each sparse product multiplies."""
        return [width for _, width in self.products]

    @property
    def oblivious(self) -> bool:
        return self.form == "oblivious"

    @cached_property
    def moved(self) -> Volumes:
        """Rows that are exchanged."""
        return self.volumes.oblivious() if self.oblivious else self.volumes

    def sent(self) -> Any:
        """(P,) bytes of rows that each process sends in an epoch."""
        return self.value * sum(width * one.moved.send for one, width in self.products)

    # -- time ----------------------------------------------------------------------------------------------------------

    def seconds(self, machine: Machine, efficiency: Efficiency) -> Epoch:
        wires = Wires(machine, efficiency)
        column = self.volumes.placement.column(0)
        layers = list(pairwise(self.shape.widths(self.features, self.classes)))
        times: dict[tuple[int, int], tuple[float, float, float]] = {}
        for one, width in self.products:
            if (id(one), width) not in times:
                row = float(self.value * width)
                times[id(one), width] = (
                    wires.exchange(one.moved, row, self.form),
                    wires.sum_rows(one.volumes, row),
                    one.product(machine, efficiency, width),
                )
        # of no product at all, a single layer's that is kept, the columns are empty
        seconds_by_product = [times[id(one), width] for one, width in self.products]
        exchange, sums, products = ([each[at] for each in seconds_by_product] for at in range(3))
        return Epoch(
            exchange=sum(exchange),
            sums=sum(sums),
            weights=sum(wires.all_reduce(self.value * a * b, column) for a, b in layers),
            products=sum(products),
            dense=sum(self.dense(machine, efficiency, a, b) * (3 if at else 2) for at, (a, b) in enumerate(layers)),
        )

    def product(self, machine: Machine, efficiency: Efficiency, width: int) -> float:
        """Seconds of the slowest process in one product of this width, with its copies."""
        volumes, placement = self.volumes, self.volumes.placement
        row, blocks = self.value * width, len(placement.stages(0))
        own_rows = np.repeat(volumes.rows, placement.replication)
        entry = LOOSE if self.published else self.value + INDEX
        moved = volumes.entries * (entry + row)
        if self.oblivious or self.published:  # a product per block reads and writes the sum anew
            moved = moved + 2 * blocks * row * own_rows
            kernels = blocks * KERNELS["oblivious" if self.oblivious else "aware"]
        else:
            moved, kernels = moved + row * own_rows, 1
        if not self.oblivious:
            moved = moved + 2 * row * volumes.send  # gathered for others
            kernels += 1
            if self.published:
                halo = volumes.receive
                moved = moved + row * (self._others() + 2 * halo)  # zeros; then what came, copied into them
        return float(np.max(moved)) / _reached(machine, efficiency) + kernels * efficiency.launch

    def _others(self) -> Any:
        """(P,) rows of all block rows that a process multiplies, without its own."""
        placement, rows = self.volumes.placement, self.volumes.rows
        others = np.where(np.eye(placement.parts, dtype=bool), 0, rows[None, :])  # [i, q]
        own_rows = [np.where(placement.columns == j, others, 0).sum(1) for j in range(placement.replication)]
        return np.stack(own_rows, axis=1).reshape(-1)

    def dense(self, machine: Machine, efficiency: Efficiency, before: int, after: int) -> float:
        """Seconds of a product of H with weights for the largest block row, bound by flops or by bytes."""
        rows = float(np.max(self.volumes.rows, initial=0))
        flops = 2 * rows * before * after / (machine.best_product("float32") * efficiency.products)
        moved = self.value * rows * (before + after) / _reached(machine, efficiency)
        return max(flops, moved) + efficiency.launch

    # -- memory --------------------------------------------------------------------------------------------------------

    def memory(self) -> dict[str, Any]:
        """(P,) bytes of each process by kind, at the widest product."""
        volumes, placement = self.volumes, self.volumes.placement
        own_rows = np.repeat(volumes.rows, placement.replication)
        kept_product = self.features if self.shape.epoch == "lean" else 0  # of the first epoch, and its rows' room
        widest = max(kept_product, *self.widths, 0)
        widths = self.shape.widths(self.features, self.classes)
        weights = STATES * self.value * self.shape.parameters(self.features, self.classes)
        saved = sum(widths[1:]) * 2  # Z and H of each layer, which the backward pass asks for
        both = [volumes] if self.back is None else [volumes, self.back]
        entries = sum(each.entries for each in both)
        moved = np.max([each.send + each.receive for each in both], axis=0)
        bytes_by_kind = {
            "weights": np.full(placement.processes, weights),
            "features": self.value * own_rows * (self.features + kept_product),
            "activations": self.value * own_rows * (saved + widest),  # and the product under way
        }
        if self.published:  # its features ask for a gradient too, which is kept from epoch to epoch
            bytes_by_kind["gradient of features"] = self.value * own_rows * self.features
            bytes_by_kind["graph"] = 2 * LOOSE * entries
        else:
            bytes_by_kind["graph"] = (self.value + INDEX) * entries + INDEX * (own_rows + 1) * len(both)
        if self.oblivious:
            bytes_by_kind["rows"] = np.full(
                placement.processes, self.value * widest * int(np.max(volumes.rows, initial=0))
            )
        else:
            bytes_by_kind["rows"] = self.value * widest * moved
            if self.published:
                bytes_by_kind["rows"] = bytes_by_kind["rows"] + self.value * widest * int(
                    np.max(volumes.rows, initial=0)
                )
        return bytes_by_kind

    def peak(self) -> int:
        """Bytes of the process that needs most."""
        return int(np.max(sum(self.memory().values())))

    def check_memory(self, machine: Machine) -> None:
        """Raise DoesNotFit if a process needs more memory than a device has."""
        if (peak := self.peak()) > machine.memory:
            error = DoesNotFit(
                f"{peak / 1e9:.1f} GB on the fullest of {self.volumes.placement.processes} processes",
                rule=f"at most {machine.memory / 1e9:.1f} GB of a device of {machine.name}",
                legal="more processes",
            )
            error.memory = {kind: [int(one) for one in each] for kind, each in self.memory().items()}
            raise error


def _reached(machine: Machine, efficiency: Efficiency) -> float:
    """Memory bandwidth of a device in bytes/s."""
    if not efficiency.traffic:
        what = f"sparse products with efficiency={efficiency.name}, whose traffic is 0"
        raise InvalidRequest(what, rule="they are bound by memory", legal="efficiency=gnn")
    return machine.memory_bandwidth * efficiency.traffic
