"""Keys of the update rule, and of the pieces in which weights are updated."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from suite.config.base import Positive, Settings, Text
from suite.config.plugins import Plugin, argument_names
from suite.core.errors import InvalidRequest
from suite.core.protocols import UpdateRule


class Optimizer(Settings):
    """Update rule of the weights, by its class and arguments, and the pieces in which it steps."""

    model_config = ConfigDict(extra="allow")

    target: Annotated[Text, Field(alias="_target_", examples=["suite.engine.optim.optimizer.AdamW"])]
    """Class of the update rule. Its arguments are the other keys of the group, except those listed below."""
    bucket_numel: Annotated[int, Field(ge=1, le=2**62)] = 16_000_000
    """Weights that one optimizer step updates, and fetches from the host, at a time (AxoNN V-B: bsize)."""
    buckets_per_reduction: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Buckets per reduction, which overlaps the step of earlier buckets (V-C: k); null: one reduction first."""
    clip_norm: Positive | None = None
    """Largest norm of the gradients of all weights; null: no clipping. With it, steps begin after all reductions."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the update rule, by name."""
        return dict(self.more)

    @property
    def rule(self) -> Plugin[UpdateRule]:
        """The update rule, by its class and arguments."""
        return Plugin(self.target, self.arguments, required_type=UpdateRule, place="optimizer")

    def build(self) -> UpdateRule:
        """The update rule. Raises InvalidRequest where an argument does not fit its class."""
        if clash := {*OWN_KEYS} & {*argument_names(self.target)}:
            rule = f"a class without an argument {min(clash)}, as this is a key of every optimizer"
            raise InvalidRequest("optimizer._target_", self.target, rule, f"an argument {min(clash)}_of_mine")
        return self.rule.build()


OWN_KEYS = tuple(name for name in Optimizer.model_fields if name != "target")
