"""Machine model: the vendor's figures and one published measurement as data, without fitted values.

The efficiency of software on the machine is a separate model (suite/simulate/cost/efficiency.py), and a SimulationPlan
describes the run. Units: bytes, seconds, flop/s, bytes/s. A bandwidth counts one direction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from suite.core.bounds import NonNegative, Positive, check_bounds
from suite.core.errors import InvalidRequest, UnknownName, refuse
from suite.core.values import is_number
from suite.core.words import for_reports


def positive(owner: str, **numbers: float) -> None:
    """Raise InvalidRequest for the first of `numbers` that is not a finite number above zero."""
    for name, value in numbers.items():
        if not is_number(value) or value <= 0:
            raise InvalidRequest(
                f"{owner}.{name}={value}", rule="a finite number above 0", legal=f"{owner}.{name}=1.0e+9"
            )


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two places: `latency` seconds, then `bandwidth` bytes/s."""

    latency: NonNegative
    bandwidth: Positive

    def __post_init__(self) -> None:
        check_bounds(self)

    def seconds(self, size: float) -> float:
        return self.latency + size / self.bandwidth


@dataclass(frozen=True, slots=True)
class Machine:
    """Equal nodes of equal devices.

    Attributes:
        devices_per_node: Devices of a node.
        memory: Bytes of a device that a program can use.
        peak: Dense flop/s of a device's matrix units by type, from the data sheet.
        memory_bandwidth: bytes/s of a device's own memory.
        within: Link between two devices of a node; each device has its own.
        between: Link of one network adapter of a node.
        adapters: Network adapters of a node, shared by its devices.
        host: Link between a device and its node's memory.
        source: Source of the figures.
        devices: Names under which publications list the device; empty for a machine that is no product.
        family: Family of devices with equal matrix units, for which efficiencies are known.
        sustained: Share of the data sheet's peak that the best published large matrix product reaches. Power limits the
            clock of a device under load. Each file of conf/machine names its measurement.
        compute_units: Multiprocessors or compute units of a device, over which the tiles of a product are spread; 0 if
            unknown.
        backends: For a measured machine, the link of two ranks by operation (point_to_point, all_reduce) and backend:
            `backends["all_reduce"]["suite over gloo"].seconds(bytes)`.
    """

    name: str
    devices_per_node: int
    memory: float
    peak: Mapping[str, float]
    memory_bandwidth: float
    within: Link
    between: Link
    adapters: int
    host: Link
    source: str = ""
    devices: tuple[str, ...] = ()
    family: str = ""
    compute_units: int = 0
    sustained: float = 1.0
    backends: Mapping[str, Mapping[str, Link]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        positive(
            "machine",
            memory=self.memory,
            memory_bandwidth=self.memory_bandwidth,
            **{f"peak.{kind}": value for kind, value in self.peak.items()},
        )
        for name in ("devices_per_node", "adapters"):
            value = getattr(self, name)
            odd = isinstance(value, bool) or not isinstance(value, int) or value < 1
            refuse([(odd, f"machine.{name}={value}", "a whole number, at least 1", f"machine.{name}=4")])
        share, peak = f"machine.sustained={self.sustained}", f"machine.peak of {self.name} is empty"
        sustained = is_number(self.sustained) and 0 < self.sustained <= 1
        refuse(
            [
                (not sustained, share, "a share above 0 and at most 1", "machine.sustained=0.8"),
                (not self.peak, peak, "flop/s by type", "{float16: 125.0e+12}"),
            ]
        )

    def peak_of(self, dtype: str) -> float:
        if dtype not in self.peak:
            raise UnknownName(f"peak of {self.name} for type", dtype, self.peak)
        return self.peak[dtype]

    def best_product(self, dtype: str) -> float:
        """flop/s of the best published large matrix product."""
        return self.sustained * self.peak_of(dtype)

    def node(self, rank: int) -> int:
        """Node of a rank. Ranks fill nodes in order."""
        return rank // self.devices_per_node

    def nodes(self, ranks: int) -> int:
        return -(-ranks // self.devices_per_node)

    def link(self, first: int, second: int) -> Link:
        """Link between two ranks."""
        return self.within if self.node(first) == self.node(second) else self.between


def measured(*, name: str, file: str) -> Machine:
    """Machine that `make doctor` measured and wrote to `file`: matrix products, messages and all-reduces of two ranks.

    Raises InvalidRequest without such a file.
    """
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
        links = {key: Link(**content[key]) for key in ("within", "between", "host")}
        backends = {
            operation: {way: Link(**link) for way, link in ways.items()}
            for operation, ways in content.get("backends", {}).items()
        }
        content.pop("foreign_cores", None)  # of the measurement, not of the machine
        return Machine(**{**content, **links, "backends": backends, "name": name})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(
            f"machine={name} is not measured here ({error})",
            rule=f"{for_reports('doctor', Path(file).parent)} writes {file}",
            legal="machine=summit",
        ) from error
