"""Shapes of the published GPTs, from configs of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from suite.core.errors import InvalidRequest
from suite.core.values import shown
from suite.workload import Transformer


class ModelGroup(TypedDict, total=False):
    """A model's group of keys. shape: the built shape of its network, of whatever class the user names"""

    shape: Any


def transformers(models: Mapping[str, ModelGroup]) -> dict[str, Transformer]:
    """The shapes of configs of models, built, by their names. Raises InvalidRequest for a model that is no GPT."""
    shapes = {}
    for model, config in models.items():
        shape = config.get("shape")
        if not isinstance(shape, Transformer):
            what = f"models.{model}.shape={shown(shape)}"
            raise InvalidRequest(what, rule="the shape of a GPT", legal=f"model@executor.models.{model}=gpt3_xl")
        shapes[str(model)] = shape
    return shapes
