"""Wait for the Slurm jobs of a sweep.

A job counts as gone only if Slurm answers that it does not know the job. A busy or restarting controller ends no job.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from suite.runner.slurm.arrays import JobArray
from suite.runner.slurm.job_state import UNKNOWN, JobState, Task, query_states

_POLL_INTERVAL = 1.0, 15.0  # seconds between two queries, at first and at most
GONE_AFTER = 60.0  # seconds without a trace of a job in Slurm's answers after which it has ended
_STATUS_GRACE = 5.0  # the same for a job that wrote its exit status, whether or not Slurm answers


def wait_for_jobs(
    arrays: Sequence[JobArray],
    report: Callable[[str], None],
    *,
    limit: float = float("inf"),
    gone_after: float | None = None,
) -> dict[Task, JobState]:
    """Wait until all jobs have ended.

    Args:
        arrays: Arrays, of which those that were not submitted are skipped.
        report: Receives a line when a count of states changes.
        limit: Seconds after which to return although jobs have not ended.
        gone_after: Seconds without a trace of a job after which it has ended; None for GONE_AFTER.

    Returns:
        The last known state of each job.
    """
    gone_after = GONE_AFTER if gone_after is None else gone_after
    arrays_by_task = {(array.job_id, n): array for array in arrays if array.job_id for n in range(len(array.jobs))}
    last_states, done = dict.fromkeys(arrays_by_task, UNKNOWN), set[Task]()
    unknown_since: dict[Task, float] = {}  # Slurm answers that it does not know the job
    silent_since: dict[Task, float] = {}  # no state of the job, for whatever reason
    pause, end, last_line = _POLL_INTERVAL[0], time.monotonic() + limit, ""
    while True:
        waiting = [task for task in arrays_by_task if task not in done]
        states, unanswered = query_states(sorted({job_id for job_id, _ in waiting})) if waiting else ({}, set())
        now = time.monotonic()
        for task in waiting:
            if task in states:
                last_states[task] = states[task]
                unknown_since.pop(task, None)
                silent_since.pop(task, None)
                ended = states[task].ended
            else:
                ended = task[0] not in unanswered and now - unknown_since.setdefault(task, now) >= gone_after
                wrote_status = arrays_by_task[task].exit_status(task[1]) is not None
                ended |= now - silent_since.setdefault(task, now) >= _STATUS_GRACE and wrote_status
            done |= {task} if ended else set()
        counts = Counter(last_states[task].name.lower() for task in arrays_by_task if task not in done)
        parts = [*(f"{count} {name}" for name, count in sorted(counts.items())), f"{len(done)} ended"]
        line = ", ".join([*parts, *(["Slurm does not answer"] if unanswered else [])])
        if line != last_line:
            report(f"slurm: {line}")
            last_line, pause = line, _POLL_INTERVAL[0]
        if len(done) == len(arrays_by_task) or now > end:
            return last_states
        time.sleep(pause)
        pause = min(pause * 1.3, _POLL_INTERVAL[1])
