"""Pipeline schedules: the order of ops, as generators without clock, tensors or I/O."""

from suite.schedule.controllable_memory import ControllableMemory
from suite.schedule.dual_pipe_v import DualPipeV
from suite.schedule.looped_bfs import LoopedBFS
from suite.schedule.message_driven import MessageDriven
from suite.schedule.message_driven_split import MessageDrivenSplit, MessageDrivenV
from suite.schedule.one_f_one_b import OneFOneB, evaluation
from suite.schedule.staircase import Staircase
from suite.schedule.zbv import ZBV

__all__ = [
    "ZBV",
    "ControllableMemory",
    "DualPipeV",
    "LoopedBFS",
    "MessageDriven",
    "MessageDrivenSplit",
    "MessageDrivenV",
    "OneFOneB",
    "Staircase",
    "evaluation",
]
