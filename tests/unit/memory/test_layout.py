"""Decides whether model states have the bytes that the papers and the allocator count.

Whether a model fits is decided from these sums before any rank starts.
"""

from __future__ import annotations

import pytest

from suite.core.errors import Refused, UnknownName
from suite.memory import Layout, State, dense


def test_adam_in_float32_is_sixteen_bytes_per_parameter() -> None:
    layout = dense(1000, ("first", "second"))
    assert layout.bytes(life="always") == 16 * 1000
    assert layout.bytes(life="step") == 4 * 1000
    assert layout.bytes() == 20 * 1000
    assert layout.by_kind() == {"weights": 4000, "gradients": 4000, "moments": 8000}
    assert layout.by_kind(life="step") == {"scratch": 4000}


@pytest.mark.parametrize(
    ("moments", "dtype", "bytes_per_parameter"),
    [((), "float32", 8), (("momentum",), "float32", 12), (("a", "b"), "float64", 32), (("a", "b"), "bfloat16", 8)],
)
def test_dense_layouts(moments: tuple[str, ...], dtype: str, bytes_per_parameter: int) -> None:
    layout = dense(7, moments, dtype)
    assert layout.bytes(life="always") == 7 * bytes_per_parameter
    assert [state.name for state in layout] == ["master", "gradient", *moments, "drift"]


def test_bytes_are_counted_where_they_live() -> None:
    layout = Layout(
        (
            State("half", "weights", "float16", 10),
            State("index", "indices", "int32", 3, form="indexed"),
            State("master", "weights", "float32", 10, home="host"),
            State("bucket", "scratch", "float32", 4, life="bucket"),
        )
    )
    assert layout.bytes() == 20 + 12 + 16
    assert layout.bytes(home="host") == 40
    assert layout.bytes(life="bucket") == 16
    assert layout.by_kind() == {"weights": 20, "indices": 12}
    assert layout.by_kind(home="host") == {"weights": 40}


def test_states_are_found_by_name() -> None:
    layout = dense(5, ("momentum",))
    assert layout["momentum"] == State("momentum", "moments", "float32", 5)
    with pytest.raises(UnknownName, match="did you mean 'momentum'"):
        layout["momentun"]


@pytest.mark.parametrize(
    ("field", "value"), [("dtype", "float23"), ("form", "sparse"), ("home", "devise"), ("life", "alway")]
)
def test_unknown_words_are_refused_with_the_known_ones(field: str, value: str) -> None:
    with pytest.raises(UnknownName, match=f"no {field} named '{value}'; rule: one of"):
        State(**{"name": "x", "kind": "weights", "dtype": "float32", "entries": 1, field: value})


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(Refused, match=r"-1 entries.*legal: 0"):
        State("x", "weights", "float32", -1)
    assert State("x", "weights", "float32", 0).bytes == 0
