"""Activation checkpoints: AxoNN's Equation 1, and its rule for the interval."""

from __future__ import annotations

from fractions import Fraction

import pytest

from suite.core.errors import InvalidRequest
from suite.core.op import FlushInterval
from suite.memory.checkpointing import activations, checkpoint_interval, resolve_interval
from suite.schedule import MessageDriven
from suite.schedule.check import check
from tests.support.refusals import refused


def test_activations_by_hand() -> None:
    """8 layers a stage, every 4th kept: 2 checkpoints of 6 microbatches, a segment's input, and its 4 layers."""
    assert activations(48, 6, 4) == 6 * 2 + 1 + 4
    assert activations(48, 1, 48) == 1 + 1 + 48
    assert activations(50, 5, Fraction(7, 2)) == Fraction(50 * 2, 7) + 1 + Fraction(7, 2)


@pytest.mark.parametrize(("stages", "every"), [(1, 1), (2, 2), (3, 4), (6, 4), (6, 8)])
def test_activations_are_what_the_first_stage_of_the_pipeline_holds(stages: int, every: int) -> None:
    """The checker counts the microbatches whose checkpoints are alive; the stage that computes again adds the rest."""
    layers = 48
    alive = check(MessageDriven(), stages, FlushInterval(0, 2 * stages, None, 0)).peak[0]
    assert alive == stages
    assert activations(layers, stages, every) == alive * (layers // stages // every) + 1 + every


@pytest.mark.parametrize(
    ("layers", "stages", "interval"),
    [
        (48, 6, 8),  # Table II, 12 billion: of 1 2 4 8 the closest to 6.93
        (48, 12, 4),
        (96, 24, 4),
        (96, 48, 2),
        (48, 2, 6),  # 6 and 8 are both factors of 24; 6.93 is closer to 6
        (96, 4, 8),  # 8 and 12 of 24, 9.80
        (90, 3, 10),  # 6 and 10 of 30, 9.49
        (36, 1, 6),  # the root itself
        (144, 9, 16),  # 8 and 16 are equally close to 12: 27 activations with 8, 26 with 16
        (7, 7, 1),
    ],
)
def test_the_rule_takes_the_factor_closest_to_the_root(layers: int, stages: int, interval: int) -> None:
    assert checkpoint_interval(layers, stages) == interval
    assert (layers // stages) % interval == 0


@pytest.mark.parametrize(
    ("layers", "stages", "legal"), [(48, 5, "4 stages"), (48, 49, "48 stages"), (48, 0, "1 stage")]
)
def test_unequal_stages_are_refused(layers: int, stages: int, legal: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checkpoint_interval(layers, stages)
    assert caught.value.legal == legal


@pytest.mark.parametrize(
    ("setting", "stages", "interval"),
    [
        (None, [3, 4], None),
        ("auto", [8] * 6, 8),
        ("auto", [2] * 24, 2),
        (1, [5, 3], 1),
        (4, [8] * 6, 4),
        (2, [6, 2, 0], 2),
        (4, [4, 0], 4),
    ],
)
def test_setting_resolves_to_an_interval(setting: int | str | None, stages: list[int], interval: int | None) -> None:
    assert resolve_interval(setting, stages) == interval


@pytest.mark.parametrize("word", [3, 0, -2, 16, 2.0, True, "often"])
def test_interval_that_does_not_divide_is_refused_with_legal_values(word: object) -> None:
    with refused(
        InvalidRequest,
        "activation_checkpointing",
        str(word),
        subject="on stages of 8 layers",
        rule="8, auto or None",
        legal="activation_checkpointing=8",
    ):
        resolve_interval(word, [8] * 6)  # type: ignore[arg-type]


def test_stages_of_unequal_layers_have_no_rule_and_fewer_intervals() -> None:
    with refused(InvalidRequest, subject="7 layers on 2 stages", rule="stages divide layers"):
        resolve_interval("auto", [4, 3])
    with refused(
        InvalidRequest,
        "activation_checkpointing",
        "4",
        subject="on stages of 6, 4 layers",
        rule=": 1, 2 or None",
        legal="activation_checkpointing=2",
    ):
        resolve_interval(4, [6, 4])
    with refused(
        InvalidRequest,
        "activation_checkpointing",
        "auto",
        subject="on stages of 5, 3 layers",
        rule=": 1 or None",
        legal="activation_checkpointing=1",
    ):
        resolve_interval("auto", [5, 3])
