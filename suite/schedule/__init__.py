"""Pipeline schedules: the order of ops, as generators without clock, tensors or I/O."""

from suite.schedule.message_driven import MessageDriven
from suite.schedule.one_f_one_b import OneFOneB, evaluation

__all__ = ["MessageDriven", "OneFOneB", "evaluation"]
