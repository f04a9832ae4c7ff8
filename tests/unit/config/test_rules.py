"""Rules between keys: what is accepted, and refusals that a command line of test_wrong_commands.py cannot show.

Each refusal has its key, its rule and a legal value, before any rank starts.
"""

from __future__ import annotations

from pathlib import Path

from suite.cli.draw import draw
from suite.config.compose import composed, resolve
from suite.core.errors import InvalidRequest, SuiteError
from suite.core.op import FlushInterval
from suite.runner.runs import freeze, validate_run
from tests.support.configs import altered
from tests.support.refusals import refused

SMALL = ("model=vgg_narrow", "data=digits", "optimizer=sgd", "batch.size=8")
STREAM = (*SMALL, "system=pipeoptim", "grid.inter=4")


def refusal_of(*overrides: str) -> SuiteError | None:
    return freeze(composed(list(overrides)), "").refusal


def test_data_folder_has_its_published_form(tmp_path: Path) -> None:
    absent = tmp_path / "nowhere"
    config = resolve(["data=wikitext_103", f"data.folder={absent}"])
    with refused(InvalidRequest, subject=f"there is no folder '{absent}'"):
        validate_run(config)
    absent.mkdir()
    for name in ("wiki.train.tokens", "wiki.valid.tokens"):
        (absent / name).write_text("text\n")
    validate_run(config)
    (tmp_path / "train.txt").write_text("text\n")
    config = resolve(["data=bookcorpus", f"data.folder={tmp_path}"])
    first, second = (tmp_path / f"books_large_p{number}.txt" for number in (1, 2))
    for file, text, subject in ((None, "", "holds"), (first, "text\n", "holds"), (second, "", "empty")):
        if file:
            file.write_text(text)
        with refused(InvalidRequest, subject=subject):
            validate_run(config)
    second.write_text("text\n")
    validate_run(config)


# -- orders of systems ------------------------------------------------------------------------------------------------


def test_the_order_of_a_users_system_has_parameters() -> None:
    overrides = [
        *("system=pytorch", "system._target_=mine.Own", "system.processes=null", "grid.inter=2"),
        *("+system.orders.mine._target_=suite.schedule.MessageDriven", "schedule=message_driven", "executor=check"),
    ]
    assert refusal_of(*overrides, "schedule.cap=2") is None
    assert refusal_of(*overrides, "schedule=gpipe") is not None
    assert draw([*overrides[:-1], "schedule.cap=1"]) != draw(overrides[:-1])


# -- streams ----------------------------------------------------------------------------------------------------------


def test_checked_interval_is_a_batch_or_part_of_a_stream() -> None:
    whole = resolve([*SMALL, "system=gpipe", "batch.microbatch=2"])
    assert whole.flush_interval() == FlushInterval(0, 4, None, 0)
    deep = altered(resolve(STREAM), measure__discard_first=1, measure__batches=8)
    assert deep.flush_interval() == FlushInterval(0, 9, 1, 0)
    assert altered(deep, measure__batches=10_000).flush_interval() == FlushInterval(0, 17, 1, 0)
