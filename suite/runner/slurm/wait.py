"""Wait for the Slurm jobs of a sweep.

A job is taken for gone on Slurm's own word alone: a controller that is busy, or restarts, says nothing of its jobs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from suite.runner.slurm.arrays import Array
from suite.runner.slurm.job_state import UNKNOWN, JobState, Task, states

_POLL = 1.0, 15.0  # seconds between two looks, at first and at most
GONE = 60.0  # seconds for which Slurm knows no such job: then it has ended
_TOLD = 5.0  # the same for a job that has left its exit status, whatever Slurm says


def waited(
    arrays: Sequence[Array], say: Callable[[str], None], *, limit: float = float("inf"), gone: float | None = None
) -> dict[Task, JobState]:
    """The last state of every job, when all have ended or `limit` seconds are over. Says a line when something
    changes."""
    gone = GONE if gone is None else gone
    tasks = {(array.job, number): array for array in arrays if array.job for number in range(len(array.jobs))}
    last_states, done = dict.fromkeys(tasks, UNKNOWN), set[Task]()
    missed: dict[Task, float] = {}  # since when Slurm says that there is no such job
    unheard: dict[Task, float] = {}  # since when nothing has been heard of it, for whatever reason
    pause, end, said = _POLL[0], time.monotonic() + limit, ""
    while True:
        waiting = [task for task in tasks if task not in done]
        new_states, silent = states(sorted({job for job, _ in waiting})) if waiting else ({}, set())
        now = time.monotonic()
        for task in waiting:
            if task in new_states:
                last_states[task] = new_states[task]
                missed.pop(task, None)
                unheard.pop(task, None)
                over = new_states[task].over
            else:
                over = task[0] not in silent and now - missed.setdefault(task, now) >= gone
                over |= now - unheard.setdefault(task, now) >= _TOLD and tasks[task].status(task[1]) is not None
            done |= {task} if over else set()
        counts = Counter(last_states[task].name.lower() for task in tasks if task not in done)
        parts = [*(f"{count} {name}" for name, count in sorted(counts.items())), f"{len(done)} ended"]
        line = ", ".join([*parts, *(["Slurm does not answer"] if silent else [])])
        if line != said:
            say(f"slurm: {line}")
            said, pause = line, _POLL[0]
        if len(done) == len(tasks) or now > end:
            return last_states
        time.sleep(pause)
        pause = min(pause * 1.3, _POLL[1])
