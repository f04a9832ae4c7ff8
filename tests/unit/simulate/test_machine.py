"""Machine files, and refusal of impossible machines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from suite.config.plugins import build
from suite.core.errors import InvalidRequest, UnknownName
from suite.simulate.network.machine import Link, Machine, measured
from tests.support.modelled import conf, machine, names, raw
from tests.support.refusals import fault, refused


@pytest.mark.parametrize("name", [name for name in names("machine") if name != "local"])
def test_every_machine_of_conf_builds(name: str) -> None:
    loaded = conf("machine", name)
    assert isinstance(loaded, Machine)
    assert loaded.name == name
    assert loaded.source
    assert loaded.peak_of("float16") >= loaded.peak_of("float32")
    assert loaded.within.bandwidth >= loaded.host.bandwidth / 2
    assert 1e9 < loaded.memory < 1e12, "bytes of one device"


def test_the_machine_here_is_known_once_it_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    assert raw("machine", "local")["_target_"] == "suite.simulate.network.machine.measured"
    with refused(InvalidRequest, "machine", "local", rule="suite doctor reports="):
        measured(name="local", file=str(file))
    link = {"latency": 1e-6, "bandwidth": 1e9}
    settings: dict[str, Any] = {
        "name": "whatever it is called",
        "devices_per_node": 2,
        "memory": 8e9,
        "peak": {"float16": 1e11, "float32": 1e11},
        "memory_bandwidth": 1e10,
        "within": link,
        "between": link,
        "adapters": 1,
        "host": link,
    }
    file.write_text(json.dumps(settings))
    loaded = measured(name="local", file=str(file))
    assert (loaded.name, loaded.memory, loaded.within) == ("local", 8e9, Link(1e-6, 1e9))
    assert loaded.backends == {}, "measured by a doctor of before"
    ways = {"all_reduce": {"gloo all_reduce": {"latency": 1e-4, "bandwidth": 2e9}}}
    file.write_text(json.dumps({**settings, "backends": ways}))
    summed = measured(name="local", file=str(file)).backends["all_reduce"]["gloo all_reduce"]
    assert summed.seconds(2e9) == pytest.approx(1.0001)
    bad = ({"all_reduce": {"gloo": {"latency": 1}}}, {"all_reduce": [1]}, 5)
    damages = ({"within": {"latency": 0}}, {"between": None}, {"wheels": 4}, {"memory": -1})
    for damage in (*damages, *({"backends": each} for each in bad)):
        file.write_text(json.dumps({**settings, **damage}))
        with refused(InvalidRequest, "machine.memory" if "memory" in damage else "machine") as refusal:
            measured(name="local", file=str(file))
        assert refusal.value.legal
    file.write_text("{")
    with refused(InvalidRequest, "machine", "local"):
        measured(name="local", file=str(file))


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("memory", 0, "a finite number above 0"),
        ("memory", -16e9, "a finite number above 0"),
        ("memory", math.inf, "a finite number above 0"),
        ("memory", math.nan, "a finite number above 0"),
        ("memory", "16 GB", "a finite number above 0"),
        ("memory_bandwidth", True, "a finite number above 0"),
        ("devices_per_node", 0, "a whole number, at least 1"),
        ("devices_per_node", 2.5, "a whole number, at least 1"),
        ("adapters", -2, "a whole number, at least 1"),
        ("adapters", True, "a whole number, at least 1"),
    ],
)
def test_illegal_machine_figure_is_refused_with_rule_and_legal_value(field: str, value: Any, rule: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        machine(**{field: value})
    what, told, legal = str(caught.value).split("; ")
    assert what == f"machine.{field}={value}"
    assert told == f"rule: {rule}"
    name, _, number = legal.removeprefix("legal: machine.").partition("=")
    assert name == field
    machine(**{field: int(number) if number.isdecimal() else float(number)})  # it is legal


def test_a_bad_peak_is_refused() -> None:
    with refused(InvalidRequest, "machine.peak.float16", "-1", rule="a finite number above 0"):
        machine(peak={"float16": -1})
    with refused(
        InvalidRequest, subject="machine.peak of small is empty", rule="flop/s by type", legal="{float16: 125.0e+12}"
    ):
        machine(peak={})
    with refused(UnknownName, "peak of small for type", "float8", rule="one of float16"):
        machine().peak_of("float8")
    assert machine().peak_of("float16") == 1000.0


@pytest.mark.parametrize(
    ("latency", "bandwidth", "expected"),
    [
        (
            0.0,
            -12.5e9,
            fault("link.bandwidth", -12500000000.0, rule="a finite number above 0", legal="link.bandwidth=1.0"),
        ),
        (0.0, 0, fault("link.bandwidth", 0)),
        (-1e-6, 1e9, fault("link.latency", -1e-06, rule="a finite number, at least 0", legal="link.latency=1.0e-6")),
        (math.inf, 1e9, fault("link.latency", subject="inf")),
        (math.nan, 1e9, fault("link.latency", subject="nan")),
    ],
)
def test_a_bad_link_is_refused(latency: float, bandwidth: float, expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected):
        Link(latency, bandwidth)


def test_unknown_machine_key_is_refused_with_the_known_keys() -> None:
    with refused(
        InvalidRequest,
        "wheels",
        "wheels",
        rule="one of adapters, backends, between, compute_units, devices, devices_per_node, family,",
    ):
        build({**raw("machine", "summit"), "wheels": 4})


def test_a_message_takes_its_latency_and_its_bytes() -> None:
    assert Link(0.5, 10.0).seconds(25) == 3.0
    assert Link(0.5, 10.0).seconds(0) == 0.5


def test_ranks_fill_nodes_in_order() -> None:
    threes = machine(devices_per_node=3)
    assert [threes.node(rank) for rank in range(7)] == [0, 0, 0, 1, 1, 1, 2]
    assert [threes.nodes(ranks) for ranks in (1, 3, 4, 6, 7)] == [1, 1, 2, 2, 3]
    assert threes.link(0, 2) is threes.within
    assert threes.link(2, 3) is threes.between
    assert threes.link(5, 0) is threes.between
