"""Schedule that the ranks of a system run: that of the config, or the fixed order of the system."""

from __future__ import annotations

from suite.config.rules import check_order
from suite.config.run import RunConfig
from suite.core.errors import InvalidRequest, Unsupported
from suite.core.protocols import Schedule
from suite.schedule.placement import is_split


def schedule_of(config: RunConfig, microbatches: int | None = None) -> Schedule:
    """The schedule that the system's ranks run.

    Args:
        config: Configuration of the run.
        microbatches: Microbatches per replica of a drawing; None for those of the configured batch.

    Raises:
        Unsupported: The order of the system is unknown, or `check_order` refuses it.
    """
    system = config.system
    if not system.runs_schedule and system.order is None:
        raise Unsupported(
            "system.order",
            None,
            what=f"the order of system={system.name}",
            rule="its ranks do not run the schedule of the config, and system.order names no other",
            legal="system.order=CLASS.PATH, or system.supports_schedules=true where its ranks run the schedule",
        )
    check_order(config, microbatches)
    return config.schedule.build()


def check_ticks(schedule: Schedule, key: str, backward: float, weight: float) -> None:
    """Raise InvalidRequest where the input gradient of a split backward pass would take no time.

    Args:
        schedule: Schedule that may split backward passes.
        key: Key of the weight gradient's ticks, for the message.
        backward: Ticks of a whole backward pass.
        weight: Ticks of the weight gradient.
    """
    if is_split(schedule) and weight >= backward:
        rule = f"less than the {backward:g} ticks of the whole backward pass, which include it"
        legal = f"{key}={backward - 1:g}" if backward > 1 else f"{key.rpartition('.')[0]}.backward={weight + 1:g}"
        raise InvalidRequest(key, int(weight), rule=rule, legal=legal)
