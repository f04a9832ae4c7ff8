"""The one line that a reason is shown as."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.core.errors import IllegalSchedule, InvalidRequest, RankError
from suite.core.reasons import format_traceback, headline, raised_in_user_code

OWN = """Traceback (most recent call last):
  File "/suites/suite/runner/ranks/rank.py", line 280, in main
    answer = getattr(rank, message.pop("do"))(**message)
  File "/home/me/mine/pile.py", line 12, in batch
    raise ValueError("an odd size")
ValueError: an odd size
  of many lines"""
CHAINED = f"""{OWN}

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/suites/suite/runner/ranks/rank.py", line 281, in main
    control.answer(event="done", **answer)
KeyError: 'seconds'"""
GRID = "0F2 would be forward number 2 in flight, the schedule promised 1\nstage 0 | F3   [F2]\nstage 1 | [B0]"
PLACE = "(/home/me/mine/pile.py, line 12 in batch)"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("a grid of 3 ranks; rule: one each; legal: 2", "a grid of 3 ranks; rule: one each; legal: 2"),
        (GRID, "0F2 would be forward number 2 in flight, the schedule promised 1"),
        (f"rank 0: {GRID}\n{OWN}", "rank 0: 0F2 would be forward number 2 in flight, the schedule promised 1"),
        (OWN, f"ValueError: an odd size {PLACE}"),
        (f"rank 1: {OWN}", f"rank 1: ValueError: an odd size {PLACE}"),
        (f"rank 1: {CHAINED}", f"rank 1: KeyError: 'seconds' {PLACE}"),
        ("\n  \n[rank1]: ended without a word\nlog", "ended without a word"),
        ("rank 0, 1 did not finish 'train' within 5 s\nlog\n----", "rank 0, 1 did not finish 'train' within 5 s"),
        ("Traceback (most recent call last):", "a traceback without its end"),
        ("", "nothing"),
        ("\n---\n", "nothing"),
    ],
)
def test_a_reason_in_one_line(reason: str, expected: str) -> None:
    assert headline(reason, nothing="nothing") == expected


def test_a_long_one_ends_where_its_place_does() -> None:
    ranks = ", ".join(map(str, range(200)))
    cut = headline(f"rank {ranks} did not finish", width=60)
    assert (len(cut), cut[:14], cut[-3:]) == (60, "rank 0, 1, 2, ", "...")


def raised(path: Path, text: str) -> BaseException:
    """Exception of a user's file."""
    path.write_text(text)
    try:
        exec(compile(text, str(path), "exec"), {"InvalidRequest": InvalidRequest, "IllegalSchedule": IllegalSchedule})
    except BaseException as error:
        return error
    raise AssertionError


def test_the_place_is_the_users_own_line(tmp_path: Path) -> None:
    error = raised(tmp_path / "waves.py", "def program():\n    raise ValueError('my own fault')\nprogram()\n")
    assert headline(format_traceback(error)) == f"ValueError: my own fault ({tmp_path}/waves.py, line 2 in program)"
    assert raised_in_user_code(error)


def test_a_file_that_does_not_parse_is_the_users(tmp_path: Path) -> None:
    error = raised(tmp_path / "waves.py", "def program(:\n")
    assert headline(format_traceback(error)).endswith(f"({tmp_path}/waves.py, line 1)")
    assert raised_in_user_code(error)


def test_a_fault_of_the_suite_is_not_the_users() -> None:
    from suite.core.op import Op

    try:
        Op.parse(None)  # type: ignore[arg-type]
    except Exception as error:
        inner = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
        assert not raised_in_user_code(inner)
        assert "suite/core/" in headline(format_traceback(inner))
    assert not raised_in_user_code(RankError("nobody raised it"))
