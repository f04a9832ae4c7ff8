"""Laws pass correct systems and name the fault of broken ones.

tests/distributed/test_conformance.py has real ranks; tests/laws applies the same laws to the suite's own systems.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.cli.conformance import COMMAND, main, result_line, summary
from suite.conformance.laws import LAWS, LawResult, LawVerdict, examine
from suite.conformance.orders import check_every_size, order_of_sum
from suite.conformance.system_under_test import SystemUnderTest
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.exit_codes import Exit
from suite.core.op import FlushInterval, Place, Program
from suite.schedule import OneFOneB
from suite.schedule.looped_bfs import LoopedBFS
from tests.support.refusals import refused

PLUGINS = Path(__file__).parents[2] / "plugins"
PLUGIN_FOLDER = f"launch.python_path=[{PLUGINS}]"
QUICK = ("composes", "order", "versions", "gradients", "replay", "clocks", "resume")  # laws without processes


def check_laws(overrides: tuple[str, ...], laws: tuple[str, ...] = QUICK) -> dict[str, LawResult]:
    return {report.law.name: report for report in examine(SystemUnderTest((*overrides, PLUGIN_FOLDER)), laws)}


@pytest.mark.parametrize(
    ("system", "sizes"),
    [
        ("gpipe", 256),
        ("pipeoptim", 256),
        ("dual_pipe_v", 192),
        pytest.param("looped_bfs", 256, marks=pytest.mark.exhaustive),
    ],
)
def test_systems_without_processes_keep_every_law(system: str, sizes: int) -> None:
    """DualPipeV refuses fewer than two microbatches per rank."""
    reports = check_laws((f"system={system}",), (*QUICK, "bubble", "graph", "losses"))
    assert {name for name, report in reports.items() if report.verdict is LawVerdict.KEPT} == set(QUICK), reports
    assert reports["gradients"].reason.endswith("on 3 grids of threads equal one process, bit for bit")
    assert reports["order"].reason.startswith(f"at {sizes} sizes")
    assert reports["graph"].reason == "because it trains no whole graph"


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
def test_broken_system_breaks_the_right_law(overrides: tuple[str, ...], law: str, words: list[str]) -> None:
    laws = tuple(name for name in QUICK[: QUICK.index(law) + 1] if name in ("composes", "order", "versions", law))
    reports = check_laws(overrides, laws)
    assert [name for name, report in reports.items() if report.verdict is LawVerdict.BROKEN] == [law], reports
    for word in words:
        assert word in reports[law].reason


def test_memory_is_compared_with_the_order_that_ran() -> None:
    """The order of the run holds for its own number of microbatches only."""
    bytes_kept = check_laws(("system=zb_h1",), ("bytes",))["bytes"]
    assert bytes_kept.verdict is LawVerdict.KEPT, bytes_kept.reason


@pytest.mark.parametrize("microbatches", [1, 5])
def test_gradients_are_added_in_the_order_of_the_schedule(microbatches: int) -> None:
    in_order = tuple(range(microbatches))
    assert order_of_sum(LoopedBFS(2), 2, microbatches) == in_order[::-1]
    assert order_of_sum(OneFOneB(), 2, microbatches) == in_order


class Refusing(LoopedBFS):
    """Accepts no number of microbatches on three ranks."""

    def program(self, place: Place, interval: FlushInterval) -> Program:
        if place.ranks == 3:
            raise InvalidRequest("batch.size", interval.microbatches, rule="no number is legal")
        return super().program(place, interval)


def test_schedule_that_refuses_every_number_breaks_the_law_of_order() -> None:
    with pytest.raises(
        AssertionError,
        match=r"^3 stages: Refusing\(chunks=2, split=False\) refuses every number of microbatches up to 32",
    ):
        check_every_size(Refusing(), None)


def test_later_laws_are_skipped_after_a_broken_one() -> None:
    reports = check_laws(("system=gpipe", "schedule._target_=broken.TooMany"))
    assert reports["gradients"].verdict is reports["resume"].verdict is LawVerdict.NOT_APPLICABLE
    assert reports["gradients"].reason == 'because "order" is broken'


def test_claimed_bubble_is_checked() -> None:
    claims = "+system.bubble='(stages - 1) / microbatches'"
    assert check_laws(("system=gpipe", claims), ("bubble",))["bubble"].verdict is LawVerdict.KEPT
    wrong = check_laws(("system=gpipe", "+system.bubble='(stages - 1) / stages'"), ("bubble",))["bubble"]
    assert wrong.verdict is LawVerdict.BROKEN
    assert wrong.reason == "2 stages, 1 microbatches: stage 0 idles 1 of its busy time, 0.5 is claimed"


@pytest.mark.parametrize(
    ("system", "kept_laws", "why"),
    [
        ("cagnet", {"composes", "graph", "killed"}, "it trains a whole graph: no stages, no microbatches"),
        ("torch_gpipe", {"composes", "order", "losses", "killed"}, "its engine is its own"),
    ],
)
def test_inapplicable_laws_have_a_reason(system: str, kept_laws: set[str], why: str) -> None:
    started = {"graph", "losses", "killed", "mpi", "bytes"}
    reports = check_laws((f"system={system}",), tuple(law.name for law in LAWS if law.name not in started - {"bytes"}))
    assert {name for name, report in reports.items() if report.verdict is LawVerdict.KEPT} == kept_laws - started
    assert all(why in report.reason for name, report in reports.items() if name not in kept_laws)


def test_class_that_is_no_system_is_named() -> None:
    reports = check_laws(("system=gpipe", "system._target_=broken.TooMany"), ("composes", "order"))
    assert reports["composes"].reason == "broken.TooMany has no probe()"
    assert reports["order"].verdict is LawVerdict.NOT_APPLICABLE


def test_command_prints_a_line_per_law(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["system=gpipe", PLUGIN_FOLDER, "schedule._target_=broken.TooMany", "--laws", "order,clocks"]
    assert main(arguments) == Exit.SOME_FAILED
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("gpipe: synchronous")
    (order,) = [line for line in lines if line.startswith("law 1")]
    assert "order" in order
    assert "BROKEN" in order
    assert any(line.strip().startswith("stage 0 |") for line in lines), "the drawing up to the fault"
    assert lines[-1].startswith("gpipe: 0 laws kept, 1 broken (order), 1 does not apply, ")
    assert main(["system=gpipe", "--laws=clocks"]) == Exit.OK
    assert main(["system=nobody"]) == Exit.NOTHING
    assert "refused: " in capsys.readouterr().err


@pytest.mark.parametrize(("system", "sizes"), [("torch_1f1b", 228), ("pytorch", 32)])
def test_order_of_a_peer_is_checked(system: str, sizes: int) -> None:
    order = check_laws((f"system={system}",), ("order",))["order"]
    assert order.verdict is LawVerdict.KEPT
    assert order.reason.startswith(f"at {sizes} sizes")


def test_laws_are_selected_by_name() -> None:
    read = COMMAND.read(["a=1", "--laws", "order,bytes", "b=2"])
    assert (read.words, read.options.laws) == (("a=1", "b=2"), ["order,bytes"])
    with refused(UnknownName, "law", "ordr", legal="did you mean 'order'?"):
        COMMAND.run(COMMAND.read(["--laws=ordr"]))


def test_result_line_and_summary() -> None:
    broken = LawResult(LAWS[0], LawVerdict.BROKEN, "first\nsecond", 1.26)
    assert result_line(broken).splitlines() == ["law 9   composes   BROKEN           1.3 s  first", " " * 32 + "second"]
    assert summary("mine", [broken]) == "mine: 0 laws kept, 1 broken (composes), 0 do not apply, 1 s"
