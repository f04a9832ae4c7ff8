"""Laws pass correct systems and name the fault of broken ones.

tests/distributed/test_conformance.py has real ranks; tests/laws applies the same laws to the suite's own systems.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.cli.conformance import main
from suite.conformance.laws import LAWS, LawResult, LawVerdict, examine
from suite.conformance.orders import check_every_size, order_of_sum
from suite.conformance.system_under_test import SystemUnderTest
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.exit_codes import Exit
from suite.core.op import FlushInterval, Place, Program
from suite.schedule import OneFOneB
from suite.schedule.looped_bfs import LoopedBFS
from tests.support.drawn import drawn
from tests.support.refusals import refused
from tests.support.systems import every_system

PLUGINS = Path(__file__).parents[2] / "plugins"
PLUGIN_FOLDER = f"launch.python_path=[{PLUGINS}]"
QUICK = ("composes", "order", "versions", "gradients", "replay", "clocks", "resume")  # laws without processes


def check_laws(overrides: tuple[str, ...], laws: tuple[str, ...] = QUICK) -> dict[str, LawResult]:
    return {report.law.name: report for report in examine(SystemUnderTest((*overrides, PLUGIN_FOLDER)), laws)}


@pytest.mark.slow("seven laws of a system on grids of threads")
@pytest.mark.parametrize(
    ("system", "sizes"), drawn([("gpipe", 256), ("pipeoptim", 256), ("dual_pipe_v", 192), ("looped_bfs", 256)], n=1)
)
def test_systems_without_processes_keep_every_law(system: str, sizes: int) -> None:
    """DualPipeV refuses fewer than two microbatches per rank."""
    reports = check_laws(every_system()[system], (*QUICK, "bubble", "graph", "losses"))
    assert {name for name, report in reports.items() if report.verdict is LawVerdict.KEPT} == set(QUICK), reports
    assert "3 grids of threads" in reports["gradients"].reason
    assert f"at {sizes} sizes" in reports["order"].reason


BROKEN = (
    ("order", "schedule._target_=broken.Deadlock", "deadlock: stage 0 waits for 1B0; stage 1 waits for 0F1"),
    ("order", "schedule._target_=broken.TooMany", "0F3 would be forward number 4 in flight, the schedule promised 3"),
    ("order", "schedule._target_=broken.Dropped", "0U0 comes before the backward of microbatch 4"),
    ("versions", "system=pipedream weights._target_=broken.Stale", "0F1 reads version 0+0, and [1] are there"),
    ("gradients", "system._target_=broken.Scaled", "1x1: "),
    ("replay", "system=pipedream system._target_=broken.Disobedient +system.supports_streaming=true", "4x1: "),
    ("resume", "system._target_=broken.Forgetful +system.supports_checkpoints=true", "after resuming"),
)


@pytest.mark.parametrize(("law", "overrides", "words"), drawn(BROKEN, n=3))
def test_broken_system_breaks_the_right_law(law: str, overrides: str, words: str) -> None:
    laws = tuple(name for name in QUICK[: QUICK.index(law) + 1] if name in ("composes", "order", "versions", law))
    reports = check_laws(("system=gpipe", *overrides.split()), laws)
    assert [name for name, report in reports.items() if report.verdict is LawVerdict.BROKEN] == [law], reports
    assert words in reports[law].reason


def test_memory_is_compared_with_the_order_that_ran() -> None:
    """The order of the run holds for its own number of microbatches only."""
    bytes_kept = check_laws(("system=pipeline", "schedule=zb_h1"), ("bytes",))["bytes"]
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


@pytest.mark.slow("every number of stages and microbatches is tried")
def test_schedule_that_refuses_every_number_breaks_the_law_of_order() -> None:
    with pytest.raises(AssertionError, match=r"^3 stages: .* up to 32"):
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


def test_inapplicable_laws_have_a_reason() -> None:
    started = {"graph", "losses", "ranks"}
    laws = tuple(law.name for law in LAWS if law.name not in started)
    reports = check_laws(("system=cagnet",), laws)
    assert {name for name, report in reports.items() if report.verdict is LawVerdict.KEPT} == {"composes"}
    assert all("whole graph" in report.reason for name, report in reports.items() if name != "composes")
    peer = check_laws(("system=torch_pipelining",), ("order", "replay"))
    assert peer["order"].verdict is LawVerdict.KEPT
    assert "at 256 sizes" in peer["order"].reason
    assert "its engine is its own" in peer["replay"].reason
    reports = check_laws(("system=gpipe", "system._target_=broken.TooMany"), ("composes", "order"))
    assert reports["composes"].verdict is LawVerdict.BROKEN
    assert reports["order"].verdict is LawVerdict.NOT_APPLICABLE


def test_command_prints_a_line_per_law(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["system=gpipe", PLUGIN_FOLDER, "schedule._target_=broken.TooMany", "--laws", "order,clocks"]
    assert main(arguments) == Exit.SOME_FAILED
    lines = capsys.readouterr().out.splitlines()
    (order,) = [line for line in lines if line.startswith("law 1")]
    assert "order" in order
    assert "BROKEN" in order
    assert any(line.strip().startswith("stage 0 |") for line in lines), "the drawing up to the fault"
    assert lines[-1].startswith("gpipe: laws: 1 BROKEN, 1 does not apply; ")
    assert main(["system=gpipe", "--laws=clocks"]) == Exit.OK
    assert main(["system=nobody"]) == Exit.NOTHING
    with refused(UnknownName, "law", "ordr", legal="did you mean 'order'?"):
        main.run(main.read(["--laws=ordr"]))
    read = main.read(["a=1", "--laws", "order,bytes", "b=2"])
    assert (read.words, read.laws) == (("a=1", "b=2"), ["order,bytes"])
