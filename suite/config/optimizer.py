"""Keys of the update rule, and of the pieces in which weights are updated."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from suite.config.base import Positive, Settings, Text
from suite.config.locate import TARGET
from suite.config.plugins import Plugin, argument_names
from suite.core.errors import InvalidRequest
from suite.core.protocols import UpdateRule


class Optimizer(Settings):
    """Update rule of the weights, by its class and arguments, and the pieces in which it steps."""

    model_config = ConfigDict(extra="allow")

    target: Annotated[Text, Field(alias="_target_", examples=["suite.engine.optim.optimizer.AdamW"])]
    """Class of the update rule. Its arguments are the other keys of the group, except those listed below."""
    bucket_numel: Annotated[int, Field(ge=1, le=2**62, examples=[16_000_000])] = 16_000_000
    """Weights that one optimizer step updates, and fetches from the host, at a time (AxoNN V-B: bsize)."""
    buckets_per_reduction: Annotated[int, Field(ge=1, le=1_000_000_000, examples=[4])] | None = None
    """Buckets per reduction, which overlaps the step of earlier buckets (V-C: k); null: one reduction first."""
    clip_norm: Positive | None = None
    """Largest norm of the gradients of all weights; null: no clipping. With it, steps begin after all reductions."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the update rule, by name."""
        return {str(key): value for key, value in self.more.items() if key != TARGET}

    @property
    def rule(self) -> Plugin[UpdateRule]:
        """The update rule, by its class and arguments."""
        return Plugin(self.target, self.arguments, required_type=UpdateRule, place="optimizer")

    def build(self) -> UpdateRule:
        """The update rule. Raises InvalidRequest where an argument does not fit its class."""
        names = argument_names(self.target)
        if clash := next((name for name in OWN_KEYS if name in names), None):
            rule = f"optimizer.{clash} is a key of every optimizer, so no argument of its class may have this name"
            what = f"optimizer._target_={self.target} with an argument {clash}"
            raise InvalidRequest(what, rule=rule, legal=f"an argument {clash}_of_mine")
        return self.rule.build()


OWN_KEYS = tuple(name for name in Optimizer.model_fields if name != "target")
