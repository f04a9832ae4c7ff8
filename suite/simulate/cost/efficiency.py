"""Efficiency of software on a machine: constants that no paper prints, each with the numbers it was fitted to.

An efficiency describes a paper's software (its kernels, its NCCL), not one run. All runs of the paper are simulated
with the same constants. A calibrated constant names the claims that it was fitted to, and the judge marks these claims
`calibrated`. All other constants have a physical reason, which `reasons` gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

from suite.core.errors import Broken, InvalidRequest, UnknownName, refuse
from suite.simulate.operations.generation import SoftwareGeneration, generations

# constants on which the blocks of a GPT depend
OF_BLOCKS = (
    *("products", "sparse", "network", "within", "host", "lane", "delay", "message", "collective", "hop", "compress"),
)


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of peak figures that software reaches, and overheads.

    Attributes:
        products: Rate of dense matrix products over the best published one of the device (Machine.sustained); with a
            generation, that of large products.
        generation: Software generation of a GPT's kernels (suite.simulate.operations.generation); empty for networks
            that are modelled layer by layer.
        traffic: Share of a device's memory bandwidth that element-wise kernels of layers reach; 0: their time is in
            `products`. A GPT's blocks have that of the generation.
        states: Share of a device's memory bandwidth that a step, a prediction and a copy of weights reach in the
            model of single layers; null for the value of `traffic`.
        kernels: By kind of network, the share of `products` that its layers reach; 1 where it is not named.
        launch: Seconds that one pass of one layer costs whatever its size (kernel launches).
        message: Seconds that a stage spends on every message it sends or receives, whatever its size.
        delay: Seconds from the end of a pass until its message is under way.
        lane: bytes/s that a message between two stages reaches at most, on any link.
        network: Share of an adapter's bandwidth that a ring reaches.
        adapters: Adapters of a node that a ring uses.
        pairs: Share of an adapter's bandwidth that messages of each process to each other reach.
        collective: Seconds per collective call, whatever its size.
        hop: Seconds per step of a ring.
        within: Share of the bandwidth between devices of a node that a ring reaches.
        host: Share of the link to host memory that an offloaded optimizer reaches.
        compress: Seconds per parameter and microbatch to compress a gradient (SAMO III-C).
        relative: By system, the share of `products` that its own build of the kernels reaches; 1 where it is not named.
        sparse: The same for sparse products, credited with the flops of the dense ones (SAMO V-C).
        fitted: Claims that a constant was calibrated on.
        chosen: Claims by which a constant was chosen among a few values.
        reasons: Reasons of the other constants.
        ranges: By constant, other plausible values, the ends of an interval or every legal whole number (of shares by
            name: factors).
    """

    name: str
    products: float
    generation: str = ""
    traffic: float = 1.0
    states: float | None = None
    launch: float = 0.0
    message: float = 0.0
    delay: float = 0.0
    lane: float = float("inf")
    network: float = 1.0
    pairs: float = 1.0
    adapters: int = 1
    collective: float = 0.0
    hop: float = 0.0
    within: float = 1.0
    host: float = 1.0
    compress: float = 0.0
    sparse: float = 1.0
    relative: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[str, float] = field(default_factory=dict)
    fitted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for broken, name, value, rule, legal in self._rules():
            refuse([(broken, f"efficiency.{name}={value}", rule, f"efficiency.{name}={legal}")])
        if self.generation and self.generation not in generations():
            raise UnknownName("efficiency.generation", self.generation, generations())
        names = {f.name for f in fields(self)} - {"name", "fitted", "chosen", "reasons", "ranges"}
        for name in (*self.fitted, *self.chosen, *self.reasons, *self.ranges):
            if name not in names:
                raise UnknownName("constant of an efficiency", name, names)

    def _rules(self) -> Iterator[Broken]:
        """Broken, name, value, rule and legal value of each constant."""
        for name in ("products", "network", "pairs", "within", "host", "sparse"):
            yield not 0 < getattr(self, name) <= 1, name, getattr(self, name), "a share above 0 and at most 1", "0.5"
        for name in ("launch", "message", "delay", "collective", "hop", "compress"):
            value = getattr(self, name)
            yield not 0 <= value < float("inf"), name, value, "finite and not negative", "0"
        yield not self.lane > 0, "lane", self.lane, "bytes/s, above 0", "2.0e+9"
        yield not 0 <= self.traffic <= 1, "traffic", self.traffic, "a share from 0 to 1", "0.8"
        states = 0.5 if self.states is None else self.states
        yield not 0 < states <= 1, "states", states, "a share above 0 and at most 1, or null", "0.5"
        for group in ("relative", "kernels"):
            for name, share in getattr(self, group).items():
                yield not 0 < share <= 2, f"{group}.{name}", share, "above 0 and at most 2", "1.0"
        whole = isinstance(self.adapters, int) and self.adapters >= 1
        yield not whole, "adapters", self.adapters, "a whole number, at least 1", "1"

    @property
    def generation_of_blocks(self) -> str:
        """Name of the software generation. Raises InvalidRequest without one, which models layers alone."""
        if not self.generation:
            rule = "kernels of a GPT's blocks belong to a software generation"
            raise InvalidRequest("efficiency.generation", "", rule=rule, legal="efficiency.generation=compiled")
        return self.generation

    def software(self, family: str, system: str, *, sparse: bool) -> SoftwareGeneration:
        """Software of the blocks of a GPT: the generation with these constants, on devices of a family.

        Args:
            system: Name of the system, whose own build of the kernels `relative` may name.
            sparse: Whether products with weights skip pruned entries.

        Raises InvalidRequest without a generation.
        """
        build = self.relative.get(system, 1.0)
        return replace(
            generations()[self.generation_of_blocks],
            products={family: self.products * build},
            sparse=self.sparse * build if sparse else 0.0,
            within=self.within,
            between=self.network,
            collective=self.collective,
            hop=self.hop,
        )

    def plausible_ranges(self) -> Iterator[tuple[str, tuple[float, float]]]:
        """Least and largest plausible value of each constant of a GPT's blocks: of `ranges`, and without any, half to
        twice the value, with shares at most 1."""
        for name, values in self.ranges.items():
            if not isinstance(getattr(self, name), Mapping):
                yield name, (min(values), max(values))
        for name in () if self.ranges else OF_BLOCKS:
            value = getattr(self, name)
            if 0 < value < float("inf"):
                yield name, (value / 2, 2 * value if value > 1 else min(1.0, 2 * value))

    @property
    def calibrated_on(self) -> tuple[str, ...]:
        """Claims that a constant was fitted to or chosen by. Agreement with them is no evidence."""
        groups = (*self.fitted.values(), *self.chosen.values())
        return tuple(dict.fromkeys(claim for claims in groups for claim in claims))
