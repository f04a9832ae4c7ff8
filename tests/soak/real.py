"""Random configurations on real ranks: each ends with a record, and none hangs or prints a traceback.

Networks are tiny, grids have four ranks at most, and a batch or two is trained; everything else is drawn from conf/.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

from suite.core.exit_codes import Exit
from suite.core.record import Outcome, Record
from tests.soak.configs import base, choices, near
from tests.soak.endings import Ending

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 300.0  # seconds after which a command hangs: more than all of its own deadlines
GRIDS = ((1, 1), (1, 1), (2, 1), (2, 1), (1, 2), (3, 1), (4, 1), (2, 2), (1, 4))  # stages, replicas
ALWAYS = ("measure.rounds=1", "measure.discard_first=0", "launch.deadline=90", "measure.deadline=60")
GRAPH = ("graph.source.vertices=256", "graph.source.blocks=8")
SMALL = {
    "gpt_tiny": ("model.shape.layers=4", "model.shape.hidden=16", "model.shape.heads=2", "model.shape.sequence=16"),
    "vgg_narrow": ("data=digits", "model.shape.hidden=32"),
    "alexnet_narrow": ("data=digits",),
    "residual_lstm_narrow": ("data=snippets",),
    "gnmt_narrow": ("data=number_names",),
}
NETWORKS = ("gpt_tiny",) * 6 + tuple(SMALL)
KEYS = {  # each of which is given now and then
    "activation_checkpointing": ("1", "2", "auto"),
    "optimizer.bucket_numel": ("500", "10000"),
    "optimizer.buckets_per_reduction": ("1", "3"),
    "optimizer.clip_norm": ("0.5",),
    "update_interval": ("1", "2", "4"),
    "split": ("cost", "pipedream"),
    "comm.transport": ("mpi", "gloo"),
    "comm.order": ("static",),
    "comm.eager_bytes": ("256", "4096"),
    "comm.pair_exchange": ("false",),
    "measure.warm_up": ("0", "2"),
    "measure.validate": ("every_round",),
    "launch.launcher": ("torchrun",),
    "launch.threads": ("2",),
    "launch.binding": ("core",),
    "schedule.prefer": ("forward",),
    "weights.graph": ("keep", "swap", "recompute"),
    "model.dtype": ("float64", "bfloat16", "float16"),
    "model.dropout": ("0.1",),
    "optimizer.lr": ("0.0", "1.0e+6"),
    "seed": ("4294967295",),
    "exchange.replication": ("2",),
    "exchange.form": ("staged",),
}
GROUPS = (
    ("optimizer", "precision", "pruning", "memory", "weights", "schedule"),
    ("partitioner", "exchange", "optimizer"),
)


def config(random: Random) -> list[str]:
    """The overrides of one run of real ranks."""
    system = random.choice(choices()["system"])
    inter, data = random.choice(GRIDS)
    graphs = system == "cagnet" or "aware" in system
    network = random.choice(NETWORKS)
    overrides = [f"system={system}", *ALWAYS]
    if graphs:
        overrides += GRAPH
    else:
        overrides += [
            f"model={network}",
            *SMALL[network],
            f"executor={random.choice(('real', 'real', 'emulated', 'replay'))}",
        ]
        overrides += ["model.shape.tied=false"] if network == "gpt_tiny" and random.random() < 0.9 else []
    each, times = random.choice((1, 2, 3)), random.choice((1, 2, 4, 5))
    sizes = {"grid.inter": 1 if graphs else inter, "grid.data": data, "batch.microbatch": each}
    overrides += [f"{name}={value}" for name, value in sizes.items()]
    overrides += [f"batch.size={each * data * times}", f"measure.batches={random.choice((1, 2, 4))}"]
    overrides += [f"measure.eval_batches={random.choice((0, 1))}"]
    for group in random.sample(GROUPS[graphs], random.choice((0, 0, 1, 2))):
        overrides.append(f"{group}={random.choice(choices()[group])}")
    for name in random.sample(sorted(KEYS), random.choice((0, 0, 1, 2))):
        overrides.append(f"{name}={random.choice(KEYS[name])}")
    if random.random() < 0.1:
        name = random.choice(
            [
                key
                for key in base()
                if key.partition(".")[0] in ("optimizer", "update_interval", "measure", "comm", "batch")
            ]
        )
        overrides.append(f"{name}={near(random, base()[name])}")
    return list({each.partition("=")[0]: each for each in overrides}.values())


def endings(overrides: list[str], folder: Path) -> list[Ending]:
    """How one config ends, through the command that people type."""
    command = [sys.executable, "-m", "suite", "run", *overrides, f"reports={folder}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, env=env, cwd=ROOT, start_new_session=True, **pipes)  # type: ignore[call-overload]
    try:
        said = process.communicate(timeout=DEADLINE)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        said = f"hangs\n{process.communicate()[0].decode(errors='replace')}"
    records = [Record.read(path) for path in (folder / "records").glob("*.json")]
    fault = ""
    if said.startswith("hangs"):
        fault = "hangs"
    elif "Traceback" in said or process.returncode not in tuple(Exit):
        fault = f"ended with {process.returncode}"
    elif not records and "refused: " not in said:
        fault = "left no record, and was not refused"
    elif bad := [record.reason for record in records if "Traceback" in record.reason]:
        fault = f"ended with a traceback: {bad[0][-1500:]}"
    elif late := [record.reason for record in records if record.outcome in (Outcome.TIMEOUT, Outcome.LOST_RANK)]:
        fault = f"was not done: {late[0]}"
    if fault:
        return [Ending(fault.partition(":")[0], command[1:-1], f"{fault}\n{said[-800:]}")]
    return [Ending(record.outcome.value, overrides) for record in records] or [Ending("refused", overrides)]
