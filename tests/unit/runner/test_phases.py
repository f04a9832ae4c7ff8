"""Update time of a batch: from the rank that starts its update last."""

from __future__ import annotations

from suite.core.grid import Grid
from suite.core.op import Kind, Op
from suite.core.trace import BACKWARD, COMPRESS, EXPAND, FORWARD, REDUCE, STEP, TIE, WAIT, Trace
from suite.runner.batch_metrics import held, inner, metrics, parts, told_apart, update


def trace(*spans: tuple[str, float, float]) -> Trace:
    made = Trace()
    for category, start, end in spans:
        made.add(0, category, start, end, Op(0, Kind.UPDATE, 0))
    return made


def test_an_update_is_from_its_first_reduction_to_its_last_step() -> None:
    spans = trace((FORWARD, 0, 1), (WAIT, 1, 2), (BACKWARD, 2, 4), (TIE, 4, 5), (REDUCE, 5, 6), (STEP, 6, 8.5))
    assert update(spans) == (4, 4.5)
    assert update(trace((STEP, 3, 4))) == (3, 1)
    assert update(trace((FORWARD, 0, 1))) is None
    assert update(()) is None


def test_the_last_to_come_tells_what_an_update_takes() -> None:
    """Rank 0 waits from 5 to 9 for rank 1, whose update begins at 8 and takes 2."""
    found = metrics([(10.0, [(5.0, 5.0), (8.0, 2.0)]), (7.0, [(3.0, 1.0), (2.0, 4.0)])])
    assert found["update_time"].values == (2.0, 1.0)
    assert found["pipeline_time"].values == (8.0, 6.0)
    assert {metric.unit for metric in found.values()} == {"s"}


def test_what_some_rank_does_not_tell_is_left_out() -> None:
    assert metrics([(10.0, [(5.0, 5.0), None]), (10.0, [None, None])]) == {}
    assert metrics([]) == {}
    assert metrics([(10.0, [None]), (4.0, [(1.0, 1.0)])])["pipeline_time"].values == (3.0,)


def test_parts_are_added_up_and_told_of_the_rank_with_most() -> None:
    spans = trace((COMPRESS, 1, 2), (BACKWARD, 0, 2), (COMPRESS, 3, 3.5), (BACKWARD, 2, 4), (EXPAND, 5, 5.25))
    assert parts(spans) == {COMPRESS: 1.5, EXPAND: 0.25}
    assert parts(trace((STEP, 0, 1))) == {}
    found = inner([[{COMPRESS: 1.5, EXPAND: 0.25}, {COMPRESS: 2.0}], [{}, {}]])
    assert found["compress_time"].values == (2.0, 0.0)
    assert found["expand_time"].values == (0.25, 0.0)
    assert inner([]) == inner([[{}, {}]]) == {}


def test_a_batch_is_told_apart_in_every_turn() -> None:
    """4 s to the step's end, of which the second turn compresses for half of one, and idles none."""
    first = trace((FORWARD, 0, 1), (BACKWARD, 1, 3), (STEP, 3.5, 4))
    second = trace((FORWARD, 0, 1), (BACKWARD, 1, 3), (COMPRESS, 2, 2.5), (STEP, 3, 4))
    found = told_apart([first, Trace(), second], Grid())
    assert {name: metric.values for name, metric in found.items()} == {
        "time_forward": (1.0, 1.0),
        "time_backward": (2.0, 1.5),
        "time_compress": (0.0, 0.5),
        "time_step": (0.5, 1.0),
        "time_transfer": (0.0, 0.0),
        "time_bubble": (0.0, 0.0),
        "time_wait": (0.5, 0.0),
    }
    assert {metric.unit for metric in found.values()} == {"s"}
    assert told_apart([Trace()], Grid()) == told_apart([], Grid()) == {}


def test_bytes_of_the_fullest_rank() -> None:
    memory = {"weights": [10, 20], "gradients": [1, 2], "indices": [0, 3], "scratch": [100, 4], "moments": [5, 6]}
    found = held(memory, {"moments": 7, "weights": 2})
    assert {name: metric.values for name, metric in found.items()} == {
        "peak_memory": (116.0,),
        "model_states": (31.0,),
        "host_states": (9.0,),
    }
    peers = held({"weights": [2], "masters": [4], "gradients": [3], "moments": [8], "activations": [5]}, {})
    assert peers["model_states"].values == (17.0,), "the full-precision weights that DeepSpeed holds apart"
    assert "host_states" not in held(memory, {"moments": 0})
    assert held({"activations": [4]}, {})["model_states"].values == (0.0,)
