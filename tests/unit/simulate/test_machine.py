"""Machine files and efficiency files: links by hand, constants with their sources, impossible figures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from suite.claims import load
from suite.config.plugins import build
from suite.core.errors import InvalidRequest, UnknownName
from suite.simulate.cost.efficiency import Efficiency
from suite.simulate.network.machine import Link, Machine, measured
from tests.support.modelled import conf, efficiency, machine, names, raw
from tests.support.refusals import refused

NO_CONSTANTS = {"name", "fitted", "chosen", "reasons", "ranges"}
SHARES = ("products", "network", "pairs", "within", "host", "sparse")
TIMES = ("launch", "message", "delay", "collective", "hop", "compress")
BAD_EFFICIENCIES = {
    **dict.fromkeys(SHARES, (0, -0.5, 1.0001, math.nan)),
    **dict.fromkeys(TIMES, (-1e-9, math.inf, math.nan)),
    "traffic": (-0.1, 1.5, math.nan),
    "states": (0, -0.1, 1.5, math.nan),
    "lane": (0, -2e9, math.nan),
    "adapters": (0, -1, 1.5),
}
BAD_MACHINES = {
    "memory": (0, -16e9, math.inf, math.nan, "16 GB"),
    "memory_bandwidth": (True,),
    "sustained": (0.0, 1.2, math.nan),
    "devices_per_node": (0, 2.5),
    "adapters": (-2, True),
}


def test_every_machine_of_conf_builds() -> None:
    for name in (name for name in names("machine") if name != "local"):
        loaded = conf("machine", name)
        assert isinstance(loaded, Machine)
        assert loaded.name == name
        assert loaded.source, name
        assert loaded.peak_of("float16") >= loaded.peak_of("float32"), name
        assert 1e9 < loaded.memory < 1e12, name


def test_constants_of_every_efficiency_have_a_source_and_a_range() -> None:
    """A constant that is not the default is fitted to claims that exist, or has a reason."""
    known = {claim.id for claim in load.claims()}
    for name in names("efficiency"):
        loaded = conf("efficiency", name)
        assert loaded.name == name
        assert set(loaded.calibrated_on) <= known, name
        assert set(loaded.ranges) >= {*loaded.fitted, *loaded.chosen}, name
        for constant, ends in loaded.ranges.items():
            value = getattr(loaded, constant)
            factor = 1.0 if isinstance(value, Mapping) else value
            assert min(ends) <= factor <= max(ends) > min(ends), (name, constant)
        if name not in ("ideal", "usual"):
            usual = Efficiency(name, 1.0)
            changed = {each for each in Efficiency.__slots__ if getattr(loaded, each) != getattr(usual, each)}
            assert changed - NO_CONSTANTS <= {*loaded.fitted, *loaded.chosen, *loaded.reasons}, name


def test_efficiency_names_each_calibration_cell_once() -> None:
    assert efficiency(fitted={"products": ("a", "b"), "network": ("b", "c")}).calibrated_on == ("a", "b", "c")
    assert efficiency().calibrated_on == ()


def test_the_machine_here_is_known_once_it_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    with refused(InvalidRequest, "machine", "local", rule="suite doctor reports="):
        measured(name="local", file=str(file))
    link = {"latency": 1e-6, "bandwidth": 1e9}
    settings: dict[str, Any] = {
        **{"name": "any", "devices_per_node": 2, "memory": 8e9, "peak": {"float16": 1e11, "float32": 1e11}},
        **{"memory_bandwidth": 1e10, "within": link, "between": link, "adapters": 1, "host": link},
    }
    file.write_text(json.dumps(settings))
    loaded = measured(name="local", file=str(file))
    assert (loaded.name, loaded.memory, loaded.within, loaded.backends) == ("local", 8e9, Link(1e-6, 1e9), {})
    ways = {"all_reduce": {"gloo all_reduce": {"latency": 1e-4, "bandwidth": 2e9}}}
    file.write_text(json.dumps({**settings, "backends": ways}))
    summed = measured(name="local", file=str(file)).backends["all_reduce"]["gloo all_reduce"]
    assert summed.seconds(2e9) == pytest.approx(1.0001)
    bad_backends = [{"backends": bad} for bad in ({"all_reduce": {"gloo": {"latency": 1}}}, {"all_reduce": [1]}, 5)]
    for damage in ({"within": {"latency": 0}}, {"between": None}, {"wheels": 4}, {"memory": -1}, *bad_backends):
        file.write_text(json.dumps({**settings, **damage}))
        with refused(InvalidRequest, "machine.memory" if "memory" in damage else "machine") as refusal:
            measured(name="local", file=str(file))
        assert refusal.value.legal, damage
    file.write_text("{")
    with refused(InvalidRequest, "machine", "local"):
        measured(name="local", file=str(file))


def test_impossible_figure_is_refused_with_its_key_and_a_legal_value() -> None:
    for group, make, rows in (("machine", machine, BAD_MACHINES), ("efficiency", efficiency, BAD_EFFICIENCIES)):
        for name, value in ((name, value) for name, values in rows.items() for value in values):
            with refused(InvalidRequest, f"{group}.{name}") as caught:
                make(**{name: value})
            key, _, number = caught.value.legal.partition("=")
            assert key == f"{group}.{name}"
            make(**{name: int(number) if number.isdecimal() else float(number)})
    bounded = set(Efficiency.__slots__) - NO_CONSTANTS - {"relative", "kernels", "generation"}
    assert set(BAD_EFFICIENCIES) == bounded, "every constant has bounds"


def test_bad_shares_and_unknown_constants_are_refused() -> None:
    for group in ("kernels", "relative"):
        for share in (0, -1, 2.5, math.nan):
            with refused(InvalidRequest, f"efficiency.{group}.it", str(share), legal="1.0"):
                efficiency(**{group: {"other": 2.0, "it": share}})
    for field in ("fitted", "chosen", "reasons", "ranges"):
        with refused(UnknownName, "constant of an efficiency", "product", legal="products"):
            efficiency(**{field: {"product": ("a.claim",)}})
    with refused(UnknownName, "efficiency.generation", "megatrom"):
        efficiency(generation="megatrom")
    with refused(InvalidRequest, "machine.peak.float16", "-1"):
        machine(peak={"float16": -1})
    with refused(InvalidRequest, legal="{float16: 125.0e+12}"):
        machine(peak={})
    with refused(UnknownName, "peak of small for type", "float8"):
        machine().peak_of("float8")
    with refused(InvalidRequest, "wheels", "wheels"):
        build({**raw("machine", "summit"), "wheels": 4})


def test_bad_link_is_refused() -> None:
    for latency, bandwidth, key in (
        *((0.0, bandwidth, "bandwidth") for bandwidth in (-12.5e9, 0)),
        *((latency, 1e9, "latency") for latency in (-1e-6, math.inf, math.nan)),
    ):
        with refused(InvalidRequest, key):
            Link(latency, bandwidth)


def test_a_message_takes_its_latency_and_its_bytes() -> None:
    assert [Link(0.5, 10.0).seconds(size) for size in (25, 0)] == [3.0, 0.5]
    assert machine().peak_of("float16") == 1000.0


def test_ranks_fill_nodes_in_order() -> None:
    threes = machine(devices_per_node=3)
    assert [threes.node(rank) for rank in range(7)] == [0, 0, 0, 1, 1, 1, 2]
    assert [threes.nodes(ranks) for ranks in (1, 3, 4, 6, 7)] == [1, 1, 2, 2, 3]
    assert [threes.link(*pair) for pair in ((0, 2), (2, 3), (5, 0))] == [threes.within, threes.between, threes.between]
