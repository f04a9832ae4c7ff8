"""The schedule that the ranks of a system run."""

from __future__ import annotations

from suite.config.run import RunConfig
from suite.config.validate.order import check_order
from suite.core.errors import Unsupported
from suite.core.protocols import Schedule


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
