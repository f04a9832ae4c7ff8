"""Schedule view of the what-if page: its times, memory and versions are those of the checker and of the comparison."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise

import pytest

from suite.config.compose import resolve
from suite.core.errors import IllegalSchedule, InvalidRequest, UnknownName
from suite.core.op import FlushInterval
from suite.core.protocols import ExecutorResult
from suite.runner.executors.check_executor import ScheduleCheck
from suite.schedule.check import check, op_costs
from suite.schedule.torch_csv import write
from suite.simulate.schedule_comparison import CostSetting, ScheduleComparison
from suite.simulate.schedule_run import ScheduleRun
from suite.whatif.export import catalogue
from suite.whatif.page import Page
from suite.whatif.schedule_view import runs, sized
from tests.support.drawn import few, generator

choices = cache(catalogue)
GPIPE = """
def order(place, microbatches):
    for kind in "FB":
        for index in range(microbatches):
            yield kind, place.stage, index
"""


@pytest.fixture
def page() -> Page:
    return Page(json.loads(json.dumps(choices())))  # as the browser reads it


def run(page: Page, *words: str) -> ScheduleRun:
    return runs(sized(page.question(words)[1]), page.catalogue)[0]


def flushing() -> list[str]:
    return [name for name, choice in choices()["schedules"].items() if choice["update_interval"] is None]


@pytest.mark.parametrize("name", few(range(15), 4, "schedules"))
def test_without_latency_and_jitter_the_timeline_is_that_of_the_checker(page: Page, name: int) -> None:
    chosen, draw = flushing()[name], generator("sizes", name)
    ranks, costs = draw.randint(1, 6), (draw.randint(1, 3), draw.randint(1, 3), draw.randint(1, 3))
    microbatches = 2 * ranks * draw.randint(1, 3)
    words = [f"{key}={value}" for key, value in zip(("forward", "input", "weight"), costs, strict=True)]
    found = run(page, f"schedule={chosen}", f"ranks={ranks}", f"microbatches={microbatches}", *words)
    forward, gradient, weight = (cost / found.chunks for cost in costs)
    cost = op_costs(forward, gradient + weight, weight)
    timeline = check(found.schedule, ranks, FlushInterval(0, microbatches, None, 0), cost=cost)
    assert sorted((span.op, span.start, span.end) for span in found.spans) == sorted(timeline.slots)


def test_makespan_memory_and_messages_are_those_of_the_comparison(page: Page) -> None:
    """The executor `schedule_grid` compares the same schedules by other code, where orders are static."""
    for name in few(flushing(), 4, "comparison"):
        ranks, setting = 4, CostSetting("", (1.0, 1.5, 0.5), 0.25)
        found = run(page, f"schedule={name}", "microbatches=12", "input=1.5", "weight=0.5", "link=0.25", "owed=0.5")
        comparison = ScheduleComparison([setting], weight_memory=0.5)
        comparison.add(name, found.schedule, ranks, 12)
        answer = comparison.answer(name, ranks, 12)
        assert answer is not None
        expected = (answer.makespan[0], answer.held[0], answer.messages)
        assert (found.simulation.makespan / found.ideal, max(found.peak_activations), found.messages) == pytest.approx(
            expected
        )
        assert max(each.peak for each in found.memory) == pytest.approx(answer.held[0])


@pytest.mark.parametrize("system", ["pipedream", "pipedream_2bw", "pipeoptim", "spectrain"])
def test_weight_versions_are_those_of_the_check_executor(page: Page, system: str) -> None:
    config = resolve([f"system={system}", "executor=check", "grid.inter=3", "batch.size=4", "batch.microbatch=1"])
    result: ExecutorResult = ScheduleCheck(config.executor.ticks).run(config)  # type: ignore[union-attr]
    found = run(page, f"schedule={system}", "ranks=3", f"microbatches={9 * (config.update_interval or 1)}")
    assert [each.peak for each in found.versions] == result.series["weight_copies"]


def test_each_op_of_the_critical_path_starts_when_the_one_before_it_allows(page: Page) -> None:
    draw = generator("critical")
    name, replicas = draw.choice(flushing()), draw.randint(1, 3)
    words = [
        "ranks=4",
        "microbatches=8",
        "link=0.3",
        "jitter=0.5",
        f"seed={draw.randint(0, 99)}",
        f"replicas={replicas}",
    ]
    found = run(page, f"schedule={name}", *words)
    chain = [found.spans[index] for index in found.critical]
    assert (chain[0].start, chain[-1].end) == (0, found.simulation.makespan)
    for one, other in pairwise(chain):
        sent = one.rank != other.rank and str(other.op)[1] != "U"
        assert other.start == pytest.approx(one.end + (0.3 if sent else 0))
        assert not sent or f"output of {one.op}" in found.explain(found.spans.index(other))


def test_all_schedules_are_listed_fastest_first_and_those_above_the_cap_last(page: Page) -> None:
    part = {part.slot: part for part in page.more(["ranks=4", "microbatches=8", "cap=4"])}["all"]
    rows = part.tables[0].rows
    fits = [row[-1] for row in rows]
    assert {row[0] for row in rows} == {*flushing()}
    assert fits == sorted(fits, reverse=True)
    for whether in (True, False):
        times = [row[1] for row in rows if row[-1] is whether]
        assert times == sorted(times)
        assert all((row[3] <= 4) is whether for row in rows if row[-1] is whether)


def test_a_sweep_names_the_value_from_which_the_other_schedule_is_faster(page: Page) -> None:
    """A schedule with two stages per rank sends twice the messages, so a slow link turns the order."""
    *_, part = [
        part
        for part in page.more(["schedule=zbv", "versus=zb_h1", "ranks=8", "microbatches=16", "sweep=link"])
        if part.slot == "sweep"
    ]
    mine, yours = (dict(zip(each.x, each.y, strict=True)) for each in part.charts[0].series)
    first = min(at for at in mine if yours[at] < mine[at])
    assert mine[0.0] < yours[0.0]
    assert part.words[-1] == f"zb_h1 is faster from link={first:g} on."


@pytest.mark.parametrize(
    ("words", "kind", "key"),
    [
        (["schedule=zvb"], UnknownName, "schedule"),
        (["rank=4"], UnknownName, "rank"),
        (["ranks=0"], InvalidRequest, "ranks"),
        (["link=-1"], InvalidRequest, "link"),
        (["forward=0", "input=0", "weight=0"], InvalidRequest, "forward"),
        (["microbatches=2.5"], InvalidRequest, "microbatches"),
        (["schedule=zb_h1", "schedule.chunk=2"], UnknownName, "schedule.chunk"),
        (["schedule=zb_h1", "weights=stash"], InvalidRequest, "weights"),
        (["ranks=256", "microbatches=4096"], InvalidRequest, "microbatches"),
        (["view=schedules"], UnknownName, "view"),
    ],
)
def test_a_wrong_word_is_refused_with_its_key(
    page: Page, words: list[str], kind: type[InvalidRequest], key: str
) -> None:
    with pytest.raises(kind) as refused:
        page.answer(words)
    assert key in str(refused.value)
    assert refused.value.legal
    assert json.loads(page.reply(words)[0])["error"] == str(refused.value)


def test_words_of_an_answer_make_the_same_answer(page: Page) -> None:
    words = ["microbatches=8", "schedule=interleaved", "schedule.chunks=3", "link=0.2", "ranks=4"]
    short = page.words(words)
    assert short == ["schedule=interleaved", "schedule.chunks=3", "link=0.2"]  # defaults are left out
    assert page.reply(short)[1] == page.reply(words)[1]
    assert page.answer(words).command == "suite whatif schedule=interleaved schedule.chunks=3 link=0.2"


def test_parts_of_an_answer_end_when_a_newer_question_closes_them(page: Page) -> None:
    parts = page.parts(["schedule=zbv"])
    assert json.loads(next(parts))["slot"] == "all"
    parts.close()


def test_a_pasted_file_is_checked_and_drawn_with_its_own_size(page: Page) -> None:
    shown = run(page, "schedule=zbv", "ranks=3", "microbatches=6")
    timeline = check(shown.schedule, 3, FlushInterval(0, 6, None, 0))
    text = write([timeline.order(rank) for rank in range(3)])
    found = run(page, "schedule=pasted", f"pasted={text}", "link=0.1")
    expected = run(page, "schedule=zbv", "ranks=3", "microbatches=6", "link=0.1")
    assert [(span.op, span.end) for span in found.spans] == [(span.op, span.end) for span in expected.spans]
    with pytest.raises(IllegalSchedule, match=r"1B0 \(row 2, column 1\): 1B0 comes before its forward"):
        page.answer(["schedule=pasted", "pasted=0F0,0B0\n1B0,1F0"])


def test_pasted_python_runs_only_where_its_definitions_are_given(page: Page) -> None:
    words = ["schedule=pasted", f"pasted={GPIPE}", "ranks=3"]
    with pytest.raises(InvalidRequest, match="press of Run"):
        page.answer(words)
    assert json.loads(page.reply(words, run=True)[0])["error"] == ""
    expected = run(page, "schedule=gpipe", "ranks=3")
    assert [span[2:] for span in run(page, *words).spans] == [span[2:] for span in expected.spans]


def test_an_error_of_pasted_python_names_its_line(page: Page) -> None:
    text = "def program(place, interval):\n    yield (Op(place.stage, Kind.FORWARD, 0),)\n    yield nothing\n"
    answer = json.loads(page.reply(["schedule=pasted", f"pasted={text}"], run=True)[0])
    assert answer["error"] == "NameError: name 'nothing' is not defined (line 3 of the pasted text)"
