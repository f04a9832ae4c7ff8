"""Memory check of runs before their ranks start."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.config.compose import resolve
from suite.core.units import si
from suite.runner import estimate, machine_memory
from suite.runner.machine_memory import TORCH, cgroup_limits
from suite.runner.runs import Run, expand

GB = 10**9


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_memory, "machine_limit", lambda: 23 * GB)


def run_of(*overrides: str) -> Run:
    (run,) = expand(overrides)
    return run


def refusal(*overrides: str) -> str:
    return str(run_of(*overrides).refusal or "")


def test_model_beyond_the_machine_is_refused_with_both_numbers() -> None:
    message = refusal("model=gpt3_175b")
    budgets = estimate.budgets(resolve(["model=gpt3_175b"]))
    whole = sum(budget.peak + budget.layout.bytes(home="host") for budget in budgets)
    for words in ("model=gpt3_175b", "23 GB", si(whole + TORCH, "B"), "launch.memory_check=false"):
        assert words in message


TOO_LARGE = (
    "model=gpt3_175b grid.inter=8",
    "model=gpt3_175b executor=replay grid.inter=8",
    "model=gpt3_175b system=pytorch",
    "model=gpt3_13b system=deepspeed_3d grid.data=2",
    "executor=emulated grid.inter=2 executor.cost.message_bytes=10000000000",
    "executor=messages grid.data=2 executor.sizes=[80000000000]",
    "executor=products executor.widths=[1000000]",
)


def test_run_that_would_exhaust_the_machine_is_refused() -> None:
    for line in TOO_LARGE:
        assert "has 23 GB" in refusal(*line.split()), line
        assert "this machine" not in refusal(*line.split(), "launch.memory_check=false"), line
    for line in ("executor=simulated model=gpt3_175b", "executor=check batch.size=800000 batch.microbatch=8000"):
        assert not refusal(*line.split()), line  # without ranks


def test_job_for_a_scheduler_is_checked_where_it_runs() -> None:
    slurm = ("launch=slurm", "model=gpt3_13b", "grid.data=16", "batch.size=32")
    assert not refusal(*slurm)
    assert "16 ranks" in refusal(*slurm, "launch.submit=false")
    assert "2 ranks" in refusal(*slurm, "launch.submit=false", "launch.tasks_per_node=2")


GROUPS: tuple[tuple[str, dict[str, int | str], int | None], ...] = (  # membership, files, limit in bytes
    ("0::/user/job\n", {"user/memory.max": 5000, "user/job/memory.max": "max"}, 5000),
    ("0::/user/job\n", {"user/memory.max": 5000, "user/job/memory.max": 4000}, 4000),
    ("4:memory:/job\n0::/\n", {"memory/job/memory.limit_in_bytes": 3000}, 3000),
    ("4:cpu,memory:/gone\n", {"memory/memory.limit_in_bytes": 2000}, 2000),
    ("3:cpu:/job\n", {"cpu/job/memory.limit_in_bytes": 1000}, None),
    ("0::/\n", {}, None),
)


def test_limit_of_control_groups(tmp_path: Path) -> None:
    for number, (membership, files, limit) in enumerate(GROUPS):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(str(text))
        (folder / "cgroup").write_text(membership)
        assert min(cgroup_limits(folder / "cgroup", folder), default=None) == limit, membership
