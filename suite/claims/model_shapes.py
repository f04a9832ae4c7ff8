"""Shapes of the published GPTs, from configs of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from suite.core.errors import InvalidRequest
from suite.core.values import format_value
from suite.workload import Transformer


class ModelGroup(TypedDict, total=False):
    """Config group of a model."""

    shape: Any  # an instance of the class named by the user, already built


def transformers(models: Mapping[str, ModelGroup]) -> dict[str, Transformer]:
    """GPT shapes of model configs by name. Raises InvalidRequest for a model that is not a GPT."""
    shapes = {}
    for model, config in models.items():
        shape = config.get("shape")
        if not isinstance(shape, Transformer):
            what = f"models.{model}.shape={format_value(shape)}"
            raise InvalidRequest(what, rule="the shape of a GPT", legal=f"model@executor.models.{model}=gpt3_xl")
        shapes[str(model)] = shape
    return shapes
