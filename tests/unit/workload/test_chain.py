"""Counts of convolution chains: weights, flops, sizes, and live activations."""

from __future__ import annotations

from suite.core.errors import InvalidRequest
from suite.workload.conv_spec import (
    Branches,
    Chain,
    Convolution,
    Pooling,
    after,
    check_image,
    convolutions,
    counted,
    through,
)
from tests.support.refusals import refused

PLAIN = Convolution(4, (3, 3), padding=(1, 1), norm=False, bias=True)
NORMED = Convolution(4, (3, 3), padding=(1, 1))
HALF = Pooling("max", 2, 2)


def test_weights_and_flops_by_hand() -> None:
    chain: Chain = (PLAIN, HALF, Convolution(6, (1, 3), padding=(0, 1)))
    layer = counted("a", chain, (2, 8), width=4)
    assert layer.prunable == (2 * 4 * 9, 4 * 6 * 3)
    assert layer.parameters == 72 + 4 + 72 + 2 * 6, "a bias where it is asked for, scale and shift of a norm"
    assert layer.flops == 2 * (72 * 64 + 72 * 16)
    assert layer.output == 4 * 6 * 16
    assert layer.weight_working == 4 * 72
    assert [(inputs, side) for _, (inputs, _), side in convolutions(chain, (2, 8))] == [(2, 8), (4, 4)]


def test_kept_bytes_by_hand() -> None:
    """The input has 2 x 64 numbers, the output 4 x 64.

    Without a norm only the input is saved, because the output of the ReLU belongs to the next layer. A norm saves its
    input. A pooling saves its input and 8 bytes per position.
    """
    assert counted("a", (PLAIN,), (2, 8), width=4).saved == 4 * 128
    assert counted("a", (NORMED,), (2, 8), width=4).saved == 4 * (128 + 256)
    assert counted("a", (NORMED, HALF), (2, 8), width=4).saved == 4 * (128 + 256 + 256) + 8 * 64
    assert counted("a", (NORMED, HALF), (2, 8), width=2).saved == 2 * (128 + 256 + 256) + 8 * 64


def test_the_most_bytes_by_hand() -> None:
    """Backward pass of the ReLU of PLAIN: its output of 256, and two gradients of that size.

    An image has no gradient. The gradient of any other input has 128 numbers, and by then the output is freed.
    """
    assert counted("a", (PLAIN,), (2, 8), width=1, images=True).working == 3 * 256
    assert counted("a", (PLAIN,), (20, 8), width=1, images=True).working == 3 * 256
    assert counted("a", (PLAIN,), (20, 8), width=1).working == 256 + 20 * 64


def test_branches_share_their_input_and_join() -> None:
    """16 numbers enter each of two branches, which save 2 x 16 and 2 x 3 x 16 of their own.

    The concatenated output belongs to the next layer. The gradients of the second branch are computed first, and the
    gradient of its input waits until the first branch has computed its own.
    """
    both = Branches(((Convolution(1),), (Convolution(3),)))
    layer = counted("a", (both,), (1, 4), width=1)
    assert layer.saved == 16 + 2 * 16 + 2 * 48
    assert after((both,), (1, 4)) == (4, 4)
    # all saved values, the gradient of the concatenation (64), and the gradient of the second branch's ReLU (48)
    assert layer.working == 64 + 48
    assert layer.parameters == 1 * 1 + 2 + 1 * 3 + 6
    turned = Branches(((Convolution(3),), (Convolution(1),)))
    # the second branch has let go of its 2 x 16; the input's gradient waits, and the joined one is still read: 48 more
    assert counted("a", (turned,), (1, 4), width=1).working == -2 * 16 + 16 + 64 + 48


def test_a_branch_of_a_pooling_alone() -> None:
    """The pooled numbers are copied into the concatenated output, and no operation saves them.

    At the end of the forward pass the concatenated output exists in addition to the saved numbers.
    """
    both = Branches(((Convolution(1, (3, 3), 2),), (Pooling("max", 3, 2),)))
    layer = counted("a", (both,), (2, 7), width=4)
    assert layer.saved == 4 * (2 * 49 + 2 * 9) + 8 * 2 * 9
    assert layer.output == 4 * 3 * 9


def test_what_does_not_fit_is_refused() -> None:
    with refused(
        InvalidRequest,
        subject="branches with outputs of sides [4, 2]",
        rule="the outputs of all branches have one side, so that they",
    ):
        through(Branches(((Convolution(1),), (HALF,))), (1, 4))
    with refused(InvalidRequest, subject="an output of 2 x 4 pixels", rule="the output of a convolution is square"):
        through(Convolution(1, (3, 1)), (1, 4))
    with refused(InvalidRequest, subject="an image of 2 x 2 pixels", rule="at least one pixel"):
        through(Convolution(1, (3, 3)), (1, 2))


def test_too_small_image_is_refused_with_the_next_legal_side() -> None:
    chain = (Convolution(1, (5, 5), 2), HALF)
    legal = next(image for image in range(1, 50) if (image - 5) // 2 + 1 >= 2)
    assert legal == 7
    with refused(InvalidRequest, "model.shape.image", "4", subject="for a toy", legal="model.shape.image=7"):
        check_image("a toy", chain, (1, 4))
    check_image("a toy", chain, (1, 7))
