"""Bytes of model states: the papers' formulas and the allocator agree.

Whether a model fits is decided from these sums before any rank starts.
"""

from __future__ import annotations

import pytest

from suite.core.errors import InvalidRequest, UnknownName
from suite.memory import (
    Layout,
    ModelStateSpec,
    compressed,
    dense,
    mixed,
    mixed_precision,
    offload,
    offloaded,
    pruned,
    resident,
    samo,
    sparse,
    zero_1,
)
from tests.support.refusals import refused


def test_adam_in_float32_is_sixteen_bytes_per_parameter() -> None:
    layout = dense(1000, ("first", "second"))
    assert layout.bytes(life="always") == 16 * 1000
    assert layout.bytes() == 16 * 1000
    assert layout.by_kind() == {"weights": 4000, "gradients": 4000, "moments": 8000}


@pytest.mark.parametrize(
    ("moments", "dtype", "bytes_per_parameter"),
    [((), "float32", 8), (("momentum",), "float32", 12), (("a", "b"), "float64", 32), (("a", "b"), "bfloat16", 8)],
)
def test_dense_layouts(moments: tuple[str, ...], dtype: str, bytes_per_parameter: int) -> None:
    layout = dense(7, moments, dtype)
    assert layout.bytes(life="always") == 7 * bytes_per_parameter
    assert [state.name for state in layout] == ["master", "gradient", *moments]


def test_bytes_are_counted_where_they_live() -> None:
    layout = Layout(
        (
            ModelStateSpec("half", "weights", "float16", 10),
            ModelStateSpec("index", "indices", "int32", 3, form="indexed"),
            ModelStateSpec("master", "weights", "float32", 10, home="host"),
            ModelStateSpec("bucket", "scratch", "float32", 4, life="bucket"),
        )
    )
    assert layout.bytes() == 20 + 12 + 16
    assert layout.bytes(home="host") == 40
    assert layout.bytes(life="bucket") == 16
    assert layout.by_kind() == {"weights": 20, "indices": 12}
    assert layout.by_kind(home="host") == {"weights": 40}


def test_states_are_found_by_name() -> None:
    layout = dense(5, ("momentum",))
    assert layout["momentum"] == ModelStateSpec("momentum", "moments", "float32", 5)
    with refused(UnknownName, "state", "momentun", legal="did you mean 'momentum'?"):
        layout["momentun"]


@pytest.mark.parametrize(
    ("field", "value"), [("dtype", "float23"), ("form", "sparse"), ("home", "devise"), ("life", "alway")]
)
def test_unknown_words_are_refused_with_the_known_ones(field: str, value: str) -> None:
    with refused(UnknownName, field, value, rule="one of"):
        ModelStateSpec(**{"name": "x", "kind": "weights", "dtype": "float32", "entries": 1, field: value})


def test_a_negative_size_is_refused() -> None:
    with refused(InvalidRequest, subject="-1 entries", rule="not negative", legal="0"):
        ModelStateSpec("x", "weights", "float32", -1)
    assert ModelStateSpec("x", "weights", "float32", 0).bytes == 0


# -- transforms ------------------------------------------------------------------------------------------------------

ADAM = ("moment_1", "moment_2")
MIXED = mixed_precision(dense(1000, ADAM))


def test_mixed_precision_with_adam_is_twenty_bytes_per_parameter() -> None:
    """2 + 2 in half precision, 4 + 4 in single, 8 of moments (AxoNN V-B, SAMO III-D)."""
    assert [(state.name, state.bytes // 1000) for state in MIXED] == [
        ("half", 2),
        ("half_gradient", 2),
        ("master", 4),
        ("gradient", 4),
        ("moment_1", 4),
        ("moment_2", 4),
    ]
    assert MIXED.bytes() == MIXED.bytes(life="always") == 20 * 1000
    assert MIXED.by_kind() == {"weights": 6000, "gradients": 6000, "moments": 8000}
    assert mixed_precision(dense(1000, ("velocity",)), "bfloat16").bytes() == 16 * 1000
    assert mixed_precision(dense(1000, ("velocity",)), "bfloat16")["half"].dtype == "bfloat16"


def test_mixed_precision_wants_wider_weights_once() -> None:
    with refused(
        InvalidRequest,
        subject="float16 copies of float16 weights",
        rule="copied once, into a narrower type",
        legal="float32 weights",
    ):
        mixed_precision(dense(10, ADAM, "float16"))
    with refused(InvalidRequest, rule="copied once"):
        mixed_precision(MIXED)


def test_samo_is_equation_2() -> None:
    """f = 0.25: 18 f + 4 f + 2 + 2 f = 24 f + 2 bytes per parameter, of which 2 f only at the end of a step."""
    layout = samo(250)(MIXED)
    assert layout.bytes() == 24 * 250 + 2 * 1000
    assert layout.bytes(life="step") == layout["half_copy"].bytes == 2 * 250
    assert layout["index"].bytes == 4 * 250
    assert layout["half"] == MIXED["half"]
    assert {state.name for state in layout if state.form == "indexed"} == {
        *("half_gradient", "master", "gradient", "half_copy"),
        *ADAM,
    }
    assert sum(layout[name].bytes for name in ("half_gradient", "master", "gradient", *ADAM)) == 18 * 250
    assert samo(750)(MIXED).bytes() == MIXED.bytes()  # break-even at a sparsity of a quarter
    assert samo(0)(MIXED).bytes() == 2 * 1000
    assert samo(1000)(MIXED).bytes() == 26 * 1000


@pytest.mark.parametrize("remaining", [-1, 1001])
def test_samo_keeps_some_of_what_there_is(remaining: int) -> None:
    with refused(InvalidRequest, subject=f"{remaining} of 1000 entries kept, in 1000", legal="1000"):
        samo(remaining)(MIXED)


def test_samo_of_one_precision_compresses_all_but_the_weights() -> None:
    """4 bytes for each weight; a gradient, two moments, an index and a step's copy for each kept entry."""
    layout = samo(250)(dense(1000, ADAM))
    assert layout.bytes() == 4 * 1000 + 20 * 250
    assert layout.bytes(life="step") == layout["master_copy"].bytes == 4 * 250
    assert samo(600)(dense(1000, ADAM)).bytes() == 16 * 1000  # break-even at two fifths, not a quarter
    assert samo(250)(dense(1000, ("velocity",))).bytes() == 4 * 1000 + 16 * 250


def test_samo_of_sgd_in_mixed_precision() -> None:
    assert samo(250)(mixed_precision(dense(1000, ("velocity",)))).bytes() == 20 * 250 + 2 * 1000


def test_samo_of_some_weights_leaves_the_others_whole() -> None:
    """200 of 1000 entries are not pruned: 20 bytes for each of those, Equation 2 for the rest."""
    layout = samo(80, 800)(MIXED)
    assert layout.bytes() == 24 * 80 + 2 * 800 + 20 * 200
    assert (layout["half"].entries, layout["master"].entries, layout["index"].entries) == (1000, 280, 80)
    assert samo(80, 800)(dense(1000, ADAM)).bytes() == 20 * 80 + 4 * 800 + 16 * 200
    with refused(InvalidRequest, subject="80 of 1001 entries kept, in 1000", rule="0 to all of them"):
        samo(80, 1001)(MIXED)


def test_a_copy_is_no_larger_than_a_bucket() -> None:
    assert samo(250, bucket=100)(MIXED).bytes(life="step") == 2 * 100
    assert samo(250, bucket=1000)(MIXED).bytes(life="step") == 2 * 250


def test_recipes_of_pruned_networks() -> None:
    both = compressed(1000, ADAM, half="float16", kept=80, of=800)
    assert both == samo(80, 800)(MIXED)
    assert compressed(1000, ADAM, half="float16") == MIXED  # nothing is pruned yet
    away = compressed(1000, ADAM, half="float16", kept=80, of=800, bucket=10, offloaded=True)
    assert away.bytes(life="always") == 6 * 80 + 2 * 800 + 4 * 200
    assert away.bytes(life="bucket") == (16 + 2) * 10
    assert away.bytes(home="host") == 12 * 280
    for whole in (resident, offloaded):
        with refused(
            InvalidRequest,
            subject="80 of 800 entries in a layout that keeps all",
            rule="compressed",
            legal="memory=compressed",
        ):
            whole(1000, ADAM, kept=80, of=800, **({"bucket": 10} if whole is offloaded else {}))


def test_offload_leaves_the_half_copies_and_buckets() -> None:
    """4 bytes per parameter and 16 per entry of a bucket on the device, 12 per parameter in host memory (AxoNN V-B)."""
    layout = offload("master", "moments", bucket=10)(MIXED)
    assert layout.bytes() == 4 * 1000 + 16 * 10
    assert layout.bytes(home="host") == 12 * 1000
    assert layout.bytes(life="bucket") == 16 * 10
    assert layout.by_kind() == {"weights": 2000, "gradients": 2000}
    assert [(s.name, s.home, s.life, s.entries) for s in layout] == [
        ("half", "device", "always", 1000),
        ("half_gradient", "device", "always", 1000),
        ("master", "host", "always", 1000),
        ("master_bucket", "device", "bucket", 10),
        ("gradient", "device", "bucket", 10),
        ("moment_1", "host", "always", 1000),
        ("moment_1_bucket", "device", "bucket", 10),
        ("moment_2", "host", "always", 1000),
        ("moment_2_bucket", "device", "bucket", 10),
    ]
    assert offload("master", "moments", bucket=5000)(MIXED).bytes() == 20 * 1000  # no larger than what there is


def test_offload_of_one_precision_keeps_the_only_gradient() -> None:
    layout = offload("moments", bucket=10)(dense(1000, ADAM))
    assert layout["gradient"] == dense(1000, ADAM)["gradient"]
    assert layout.bytes() == 4 * 1000 + 4 * 1000 + 8 * 10  # weights, gradient, moments of a bucket
    assert layout.bytes(home="host") == 8 * 1000


def test_samo_and_offload_compose_in_either_order() -> None:
    """With both, 2 + 2 f bytes and the index stay on the device; a bucket is of kept entries, its half copy too."""
    both = offload("master", "moments", bucket=10)(samo(250)(MIXED))
    assert both.bytes() == 2 * 1000 + 2 * 250 + 4 * 250 + (16 + 2) * 10
    assert both.bytes(home="host") == 12 * 250
    other = samo(250)(offload("master", "moments", bucket=10)(MIXED))
    assert other.bytes(life="always") == both.bytes(life="always")
    assert other.bytes(home="host") == 12 * 250
    assert other.bytes(life="bucket") == 16 * 10


def test_offload_names_states_or_kinds() -> None:
    with refused(UnknownName, "state", "momenta", legal="did you mean 'moments'?"):
        offload("master", "momenta", bucket=10)(MIXED)
    with refused(InvalidRequest, subject="a bucket of 0 entries", rule="at least 1", legal="1"):
        offload("master", bucket=0)


def test_zero_shares_the_optimizer_out_and_leaves_what_passes_read() -> None:
    """2 + 2 bytes per parameter stay whole, 16 are shared out; a share that does not divide is rounded up."""
    layout = zero_1(4)(MIXED)
    assert layout.bytes() == 4 * 1000 + 16 * 250
    assert {state.name: state.entries for state in layout} == {
        "half": 1000,
        "half_gradient": 1000,
        "master": 250,
        "gradient": 250,
        "moment_1": 250,
        "moment_2": 250,
    }
    assert zero_1(3)(MIXED).bytes() == 4 * 1000 + 16 * 334
    assert zero_1(1)(MIXED) == MIXED
    assert zero_1(2000)(MIXED).bytes() == 4 * 1000 + 16


def test_zero_of_a_pruned_network_keeps_every_index() -> None:
    """Each replica compresses the whole gradient, so it needs to know where all of it goes: 2 + 2 f and 4 f bytes."""
    layout = zero_1(4)(samo(200)(MIXED))
    assert layout.bytes(life="always") == 2 * 1000 + (2 + 4) * 200 + 16 * 50
    assert layout.bytes(life="step") == 2 * 50


def test_zero_wants_replicas_and_two_precisions() -> None:
    with refused(InvalidRequest, subject="optimizer states on 0 replicas", rule="at least 1", legal="1"):
        zero_1(0)
    with refused(
        InvalidRequest,
        subject="zero_1 of one precision",
        rule="passes read the half copy",
        legal="mixed_precision(layout)",
    ):
        zero_1(2)(dense(10, ADAM))


# -- what conf/memory and conf/system name -------------------------------------------------------------------------


def test_mixed_precision_by_name() -> None:
    assert mixed(1000, ADAM) == MIXED
    assert mixed(7, ("velocity",), "float64").bytes() == (2 + 2 + 8 + 8 + 8) * 7


@pytest.mark.parametrize(
    ("sparsity", "remaining"), [(0.0, 1000), (0.25, 750), (0.9, 100), (0.9996, 0), (0.9994, 1), (1.0, 0)]
)
def test_pruned_states_by_sparsity(sparsity: float, remaining: int) -> None:
    """SAMO Equation 2, 24 f + 2 bytes per parameter with f = 1 - sparsity, to the nearest entry."""
    layout = pruned(1000, ADAM, sparsity=sparsity)
    assert layout == samo(remaining)(MIXED)
    assert layout.bytes() == 24 * remaining + 2 * 1000


@pytest.mark.parametrize(("sparsity", "remaining"), [(0.0, 1000), (0.9, 100), (1.0, 0)])
def test_sparse_kernels_keep_nothing_dense(sparsity: float, remaining: int) -> None:
    """2 + 2 in half precision, 4 + 4 + 8 in single, 4 for the index: 24 f bytes, and no copy to expand."""
    layout = sparse(1000, ADAM, sparsity=sparsity)
    assert layout.bytes() == layout.bytes(life="always") == 24 * remaining
    assert {state.form for state in layout if state.name != "index"} == {"indexed"}
    assert {state.entries for state in layout} == {remaining}


@pytest.mark.parametrize("sparsity", [-0.1, 1.1, float("nan")])
def test_a_sparsity_is_a_share(sparsity: float) -> None:
    for layout in (pruned, sparse):
        with refused(InvalidRequest, "sparsity", str(sparsity), legal="sparsity=0.9"):
            layout(1000, ADAM, sparsity=sparsity)


@pytest.mark.parametrize(
    ("half", "always", "bucket"), [("float16", 4, 16), ("bfloat16", 4, 16), (None, 8, 8)], ids=["fp16", "bf16", "full"]
)
@pytest.mark.parametrize("sets", [1, 2, 3])
def test_an_offloaded_layout_holds_whole_buckets(half: str | None, always: int, bucket: int, sets: int) -> None:
    """AxoNN V-B: 4 phi + 16 bsize; a set of buckets more costs as much again, as long as there are buckets for it."""
    layout = offloaded(1000, ADAM, bucket=100, half=half, sets=sets)
    assert layout.bytes(life="always") == always * 1000
    assert layout.bytes(life="bucket") == bucket * 100 * sets
    assert offloaded(150, ADAM, bucket=100, half=half, sets=sets).bytes(life="bucket") == bucket * 100 * min(sets, 2)
    assert offloaded(70, ADAM, bucket=100, half=half, sets=sets).bytes(life="bucket") == bucket * 70
    assert layout.bytes(home="host") == (12 if half else 8) * 1000
    with refused(InvalidRequest, subject="a bucket of 0 entries", rule="at least 1"):
        offloaded(10, ADAM, bucket=0, half=half)
    with refused(InvalidRequest, subject="0 sets of buckets", rule="at least 1"):
        offloaded(10, ADAM, bucket=1, half=half, sets=0)


def test_a_resident_layout_is_dense_or_mixed() -> None:
    assert resident(9, ADAM) == dense(9, ADAM)
    assert resident(9, ADAM, half="bfloat16") == mixed_precision(dense(9, ADAM), "bfloat16")
    assert resident(9, ADAM, half="bfloat16").bytes() == 20 * 9


def test_states_are_compressed_once() -> None:
    with refused(InvalidRequest, subject="samo of compressed states", rule="compressed once"):
        samo(5)(samo(5)(MIXED))
