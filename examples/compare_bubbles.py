"""Compare the pipeline bubbles and live activations of three schedules, without ranks or tensors."""

from baselines.gpipe import GPipe
from suite import MessageDriven, OneFOneB
from suite.core.op import FlushInterval
from suite.schedule.check import check

STAGES, MICROBATCHES = 4, 8

for schedule in (GPipe(), OneFOneB(), MessageDriven()):
    timeline = check(schedule, STAGES, FlushInterval(0, MICROBATCHES, None, 0))
    share = timeline.idle(0) / timeline.makespan
    print(f"{type(schedule).__name__:<14} bubble {share:.0%}, live activations per stage {timeline.peak}")
