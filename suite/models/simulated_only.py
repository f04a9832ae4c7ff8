"""Network module of models that are simulated only: every function refuses.

Rules of the configuration refuse such a model before ranks start (suite.config.rules). This module refuses
it for commands and programs that build layers themselves.
"""

from __future__ import annotations

from typing import NoReturn

from suite.core.errors import Unsupported
from suite.workload.language_model import LanguageModel


def layers(shape: LanguageModel, *, dropout: float, dtype: str) -> NoReturn:
    """Raise Unsupported: the model has no layers."""
    del dropout, dtype
    raise refusal(shape)


def ties(shape: LanguageModel) -> NoReturn:
    """Raise Unsupported: the model has no layers that share a weight."""
    raise refusal(shape)


def loss(outputs: object, targets: object) -> NoReturn:
    """Raise Unsupported: the model has no outputs."""
    del outputs, targets
    raise refusal()


def refusal(shape: LanguageModel | None = None) -> Unsupported:
    """The error of a model that is simulated only."""
    size = f" of {shape.parameters / 1e9:.1f}e9 parameters" if shape else ""
    return Unsupported(
        "model.network",
        __name__,
        what=f"model.network={__name__}{size}",
        rule="a LanguageModel is simulated only, so it has no layers to train",
        legal="executor=simulated",
    )
