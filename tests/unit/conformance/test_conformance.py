"""Laws name the fault of a broken system, and pass a correct one.

Real ranks are in tests/distributed/test_conformance.py, and the same laws over the suite's own systems in tests/laws.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.cli.conformance import COMMAND, main, summary, told
from suite.conformance.laws import LAWS, LawResult, LawVerdict, examine
from suite.conformance.system_under_test import Subject
from suite.core.errors import UnknownName
from suite.core.exit_codes import Exit

PLUGINS = Path(__file__).parents[2] / "plugins"
OWN = f"launch.python_path=[{PLUGINS}]"
QUICK = ("composes", "order", "versions", "gradients", "replay", "clocks", "resume")  # what needs no process


def found(overrides: tuple[str, ...], laws: tuple[str, ...] = QUICK) -> dict[str, LawResult]:
    return {finding.law.name: finding for finding in examine(Subject((*overrides, OWN)), laws)}


@pytest.mark.parametrize("system", ["gpipe", "pipeoptim"])
def test_a_flush_and_an_asynchronous_system_keep_every_law(system: str) -> None:
    asked = found((f"system={system}",), (*QUICK, "bubble", "graph", "losses"))
    assert {name for name, one in asked.items() if one.verdict is LawVerdict.KEPT} == set(QUICK), asked
    assert asked["gradients"].said.endswith("on 3 grids of threads are those of one process, bit for bit")
    assert asked["order"].said.startswith("at 256 sizes")
    assert asked["graph"].said == "because it trains no whole graph"


@pytest.mark.parametrize(
    ("overrides", "law", "words"),
    [
        (
            ("system=gpipe", "schedule._target_=broken.Deadlock"),
            "order",
            ["2 stages, 3 microbatches: deadlock: stage 0 waits for 1B0; stage 1 waits for 0F1", "stage 0 |"],
        ),
        (
            ("system=gpipe", "schedule._target_=broken.TooMany"),
            "order",
            ["1 stages, 4 microbatches: 0F3 would be forward number 4 in flight, the schedule promised 3", "[F3]"],
        ),
        (
            ("system=gpipe", "schedule._target_=broken.Dropped"),
            "order",
            ["1 stages, 5 microbatches: 0U0 comes before the backward of microbatch 4"],
        ),
        (
            ("system=pipedream", "weights._target_=broken.Stale"),
            "versions",
            ["1 stages, 2 microbatches, an update every 1: 0F1 reads version 0+0, and [1] are there"],
        ),
        (
            ("system=gpipe", "system._target_=broken.Scaled"),
            "gradients",
            ["1x1: ", "loss", "for"],
        ),
        (
            ("system=pipedream", "system._target_=broken.Disobedient", "+system.supports_streaming=true"),
            "replay",
            ["4x1: ", "epoch 0, batch", "replayed"],
        ),
        (
            ("system=gpipe", "system._target_=broken.Forgetful", "+system.supports_checkpoints=true"),
            "resume",
            ["after resuming"],
        ),
    ],
    ids=lambda value: value[1].rpartition(".")[2] if isinstance(value, tuple) else None,
)
def test_what_is_broken_is_named_by_the_right_law(overrides: tuple[str, ...], law: str, words: list[str]) -> None:
    before = QUICK[: QUICK.index(law) + 1]
    laws = tuple(name for name in before if name in ("composes", "order", "versions", law))
    asked = found(overrides, laws)
    assert [name for name, one in asked.items() if one.verdict is LawVerdict.BROKEN] == [law], asked
    for word in words:
        assert word in asked[law].said


def test_what_needs_a_broken_law_is_not_asked() -> None:
    asked = found(("system=gpipe", "schedule._target_=broken.TooMany"))
    assert asked["gradients"].verdict is asked["resume"].verdict is LawVerdict.NOT_ASKED
    assert asked["gradients"].said == 'because "order" is broken'


def test_a_claimed_bubble_is_checked() -> None:
    claims = "+system.bubble='(stages - 1) / microbatches'"
    assert found(("system=gpipe", claims), ("bubble",))["bubble"].verdict is LawVerdict.KEPT
    wrong = found(("system=gpipe", "+system.bubble='(stages - 1) / stages'"), ("bubble",))["bubble"]
    assert wrong.verdict is LawVerdict.BROKEN
    assert wrong.said == "2 stages, 1 microbatches: stage 0 idles 1 of its busy time, 0.5 is claimed"


@pytest.mark.parametrize(
    ("system", "kept", "why"),
    [
        ("cagnet", {"composes", "graph", "killed"}, "it trains a whole graph: no stages, no microbatches"),
        ("torch_gpipe", {"composes", "order", "losses", "killed"}, "its engine is its own"),
    ],
)
def test_other_kinds_are_told_which_laws_apply(system: str, kept: set[str], why: str) -> None:
    started = {"graph", "losses", "killed", "mpi", "bytes"}
    asked = found((f"system={system}",), tuple(law.name for law in LAWS if law.name not in started - {"bytes"}))
    assert {name for name, one in asked.items() if one.verdict is LawVerdict.KEPT} == kept - started
    assert all(why in one.said for name, one in asked.items() if name not in kept)


def test_a_class_that_is_no_system_is_named() -> None:
    asked = found(("system=gpipe", "system._target_=broken.TooMany"), ("composes", "order"))
    assert asked["composes"].said == "broken.TooMany has no probe()"
    assert asked["order"].verdict is LawVerdict.NOT_ASKED


def test_the_command_says_a_line_per_law_and_ends_with_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["system=gpipe", OWN, "schedule._target_=broken.TooMany", "--laws", "order,clocks"]
    assert main(arguments) == Exit.SOME_FAILED
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("gpipe: synchronous")
    (order,) = [line for line in lines if line.startswith("law 1")]
    assert "order" in order
    assert "BROKEN" in order
    assert any(line.strip().startswith("stage 0 |") for line in lines), "the grid up to the fault"
    assert lines[-1].startswith("gpipe: 0 laws kept, 1 broken (order), 1 does not apply, ")
    assert main(["system=gpipe", "--laws=clocks"]) == Exit.OK
    assert main(["system=nobody"]) == Exit.NOTHING
    assert "refused: " in capsys.readouterr().err


@pytest.mark.parametrize(("system", "sizes"), [("torch_1f1b", 228), ("pytorch", 32)])
def test_the_order_that_a_peer_names_is_checked(system: str, sizes: int) -> None:
    order = found((f"system={system}",), ("order",))["order"]
    assert order.verdict is LawVerdict.KEPT
    assert order.said.startswith(f"at {sizes} sizes")


def test_arguments() -> None:
    read = COMMAND.read(["a=1", "--laws", "order,bytes", "b=2"])
    assert (read.words, read.options.laws) == (("a=1", "b=2"), ["order,bytes"])
    with pytest.raises(UnknownName, match="did you mean 'order'"):
        COMMAND.run(COMMAND.read(["--laws=ordr"]))


def test_lines() -> None:
    finding = LawResult(LAWS[0], LawVerdict.BROKEN, "first\nsecond", 1.26)
    assert told(finding).splitlines() == ["law 9   composes   BROKEN           1.3 s  first", " " * 32 + "second"]
    assert summary("mine", [finding]) == "mine: 0 laws kept, 1 broken (composes), 0 do not apply, 1 s"
