"""Bytes of model states: the papers' formulas and the allocator agree.

Whether a model fits is decided from these sums before any rank starts.
"""

from __future__ import annotations

import pytest

from suite.memory.layout import (
    Layout,
    compressed,
    dense,
    mixed,
    mixed_precision,
    offload,
    offloaded,
    resident,
    samo,
    sparse,
    zero_1,
)

ADAM, SGDM = ("moment_1", "moment_2"), ("velocity",)
SINGLE, MIXED = dense(1000, ADAM), mixed_precision(dense(1000, ADAM))
AWAY = offload(bucket=10)
PHI = 1000
# a layout, and its bytes on the device always, in a step and in a bucket, and on the host
BYTES: list[tuple[Layout, int, int, int, int]] = [
    # 16 bytes per parameter with Adam in float32
    (SINGLE, 16 * PHI, 0, 0, 0),
    (dense(7, ()), 8 * 7, 0, 0, 0),
    (dense(7, SGDM), 12 * 7, 0, 0, 0),
    (dense(7, ADAM, "float64"), 32 * 7, 0, 0, 0),
    (dense(7, ADAM, "bfloat16"), 8 * 7, 0, 0, 0),
    # 2 + 2 in half precision, 4 + 4 in single, 8 of moments (AxoNN V-B, SAMO III-D)
    (MIXED, 20 * PHI, 0, 0, 0),
    (mixed_precision(dense(PHI, SGDM), "bfloat16"), 16 * PHI, 0, 0, 0),
    (mixed(7, SGDM, "float64"), (2 + 2 + 8 + 8 + 8) * 7, 0, 0, 0),
    (resident(9, ADAM, half="bfloat16"), 20 * 9, 0, 0, 0),
    # SAMO Equation 2: 18 f + 4 f + 2 + 2 f = 24 f + 2 bytes per parameter, of which 2 f only at the end of a step
    (samo(250)(MIXED), 22 * 250 + 2 * PHI, 2 * 250, 0, 0),
    (samo(750)(MIXED), 20 * PHI - 2 * 750, 2 * 750, 0, 0),  # break-even at a sparsity of a quarter
    (samo(0)(MIXED), 2 * PHI, 0, 0, 0),
    (samo(1000)(MIXED), 24 * PHI, 2 * PHI, 0, 0),
    (samo(250)(mixed_precision(dense(PHI, SGDM))), 18 * 250 + 2 * PHI, 2 * 250, 0, 0),
    # a copy is no larger than a bucket
    (samo(250, bucket=100)(MIXED), 22 * 250 + 2 * PHI, 2 * 100, 0, 0),
    (samo(250, bucket=1000)(MIXED), 22 * 250 + 2 * PHI, 2 * 250, 0, 0),
    # one precision: 4 bytes for each weight; a gradient, two moments, an index and a step's copy for each kept entry
    (samo(250)(SINGLE), 4 * PHI + 16 * 250, 4 * 250, 0, 0),
    (samo(600)(SINGLE), 16 * PHI - 4 * 600, 4 * 600, 0, 0),  # break-even at two fifths, not a quarter
    (samo(250)(dense(PHI, SGDM)), 4 * PHI + 12 * 250, 4 * 250, 0, 0),
    # 200 of 1000 entries are not pruned: 20 bytes for each of those, or 16 in one precision
    (samo(80, 800)(MIXED), 22 * 80 + 2 * 800 + 20 * 200, 2 * 80, 0, 0),
    (samo(80, 800)(SINGLE), 16 * 80 + 4 * 800 + 16 * 200, 4 * 80, 0, 0),
    # 4 bytes per parameter and 16 per entry of a bucket on the device, 12 per parameter in host memory (AxoNN V-B)
    (AWAY(MIXED), 4 * PHI, 0, 16 * 10, 12 * PHI),
    (offload(bucket=5000)(MIXED), 4 * PHI, 0, 16 * PHI, 12 * PHI),  # no larger than what there is
    (offload(bucket=10)(SINGLE), 8 * PHI, 0, 8 * 10, 8 * PHI),  # the only gradient stays
    # with both, 2 + 2 f bytes and the index stay on the device; a bucket is of kept entries, its half copy too
    (AWAY(samo(250)(MIXED)), 2 * PHI + 6 * 250, 0, (16 + 2) * 10, 12 * 250),
    (samo(250)(AWAY(MIXED)), 2 * PHI + 6 * 250, 2 * 250, 16 * 10, 12 * 250),
    # 2 + 2 bytes per parameter stay whole, 16 are shared out; a share that does not divide is rounded up
    (zero_1(4)(MIXED), 4 * PHI + 16 * 250, 0, 0, 0),
    (zero_1(3)(MIXED), 4 * PHI + 16 * 334, 0, 0, 0),
    (zero_1(2000)(MIXED), 4 * PHI + 16, 0, 0, 0),
    # each replica compresses the whole gradient, so it needs to know where all of it goes: 2 + 2 f and 4 f bytes
    (zero_1(4)(samo(200)(MIXED)), 2 * PHI + (2 + 4) * 200 + 16 * 50, 2 * 50, 0, 0),
    # kept entries of a pruned network on the host
    (
        compressed(PHI, ADAM, half="float16", kept=80, of=800, bucket=10, offloaded=True),
        6 * 80 + 2 * 800 + 4 * 200,
        0,
        (16 + 2) * 10,
        12 * 280,
    ),
    # sparse kernels keep nothing dense: 2 + 2 in half precision, 4 + 4 + 8 in single, 4 for the index
    (sparse(PHI, ADAM, sparsity=0.9), 24 * 100, 0, 0, 0),
    (sparse(PHI, ADAM, sparsity=1.0), 0, 0, 0, 0),
]


def test_bytes_of_every_layout() -> None:
    for layout, always, step, bucket, host in BYTES:
        assert layout.bytes() == always + step + bucket, layout
        lives = [layout.bytes(life=life) for life in ("always", "step", "bucket")]
        assert [*lives, layout.bytes(home="host")] == [always, step, bucket, host], layout


@pytest.mark.parametrize(("half", "always", "bucket"), [("float16", 4, 16), (None, 8, 8)], ids=["mixed", "full"])
def test_an_offloaded_layout_holds_whole_buckets(half: str | None, always: int, bucket: int) -> None:
    """AxoNN V-B: 4 phi + 16 bsize; a set of buckets more costs as much again, as long as there are buckets for it."""
    for sets in (1, 2, 3):
        for entries, held in ((1000, 100 * sets), (150, 100 * min(sets, 2)), (70, 70)):
            layout = offloaded(entries, ADAM, bucket=100, half=half, sets=sets)
            assert layout.bytes(life="always") == always * entries
            assert layout.bytes(life="bucket") == bucket * held, (entries, sets)
            assert layout.bytes(home="host") == (12 if half else 8) * entries
