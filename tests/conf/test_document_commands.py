"""Commands printed in README.md and docs/: each runs as printed, is checked up to the start of ranks, or has a reason.

Commands that take seconds run in each test run, commands that start ranks behind the `exhaustive` mark. Each training
command is also composed and checked by the parent process in each test run, so that a renamed key or choice fails here.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from suite.core.record import Outcome, Record
from suite.runner.runs import expand
from tests.support.ranks import ROOT
from tests.support.tools import needs

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXT = "\n".join(path.read_text() for path in DOCUMENTS)
PROGRAMS = ("suite", "python", "make", "mpiexec", "torchrun", "cp")
SUITE = (["suite", "run"], ["suite", "sweep"])


def commands() -> list[str]:
    """The indented command lines of all documents, in order, without their comments."""
    lines = re.findall(rf"^    ((?:{'|'.join(PROGRAMS)}) .*)$", TEXT, flags=re.M)
    return list(dict.fromkeys(shlex.join(shlex.split(line, comments=True)) for line in lines))


SECONDS = (  # no ranks
    "suite check system=pipeoptim grid.inter=4",
    "suite check schedule=zbv grid.inter=4",
    "suite check schedule=zbv grid.inter=4 update_interval=8",
    "suite draw schedule=zb_h2 grid.inter=4 draw.microbatches=16 update_interval=8",
    "suite draw system=axonn grid.inter=3 draw.microbatches=5",
    "suite draw schedule=zb_h1 grid.inter=4",
    "suite draw schedule=zb_h1 grid.inter=4 draw.microbatches=8",
    "suite draw schedule=v_half grid.inter=4 draw.csv=v_half.csv",
    "suite draw schedule=zbv grid.inter=4 draw.csv=zbv.csv draw.csv_format=compute_comms",
    "suite draw schedule=zbv grid.inter=2 draw.microbatches=8 draw.csv=zbv.csv",
    "suite draw system=pipeoptim grid.inter=4",
    "suite draw system=sparsity_aware_metis graph=protein_like grid.data=4",
    "suite plan model=llama3_8b machine=h100 devices=64",
    "suite plan model=gpt3_175b machine=a100 devices=512 batch=1536 generation=fused top=3",
    "suite run executor=simulated machine=summit efficiency=summit system=axonn_samo model=gpt3_13b grid.inter=8"
    " grid.data=64 batch.size=2048 batch.microbatch=1",
    "suite run system=sparsity_aware_gvb graph=amazon_like grid.data=64 exchange.replication=2 executor=volumes",
)
RANKS = (  # one or two ranks, or several runs: behind the mark
    "suite run system=axonn model=gpt_tiny grid.inter=2 grid.data=1",
    "suite sweep system=axonn,gpipe grid.inter=1,2",
    "suite run system=axonn grid.inter=2 comm.transport=gloo launch.launcher=torchrun",
    "suite run model=vgg_narrow data=digits optimizer=sgd optimizer.lr=0.02 grid.data=2",
    "suite run system=axonn precision=bf16 grid.inter=2 activation_checkpointing=auto",
    "suite run system=axonn precision=auto grid.data=2 optimizer.bucket_numel=200000 optimizer.buckets_per_reduction=2",
    "suite run system=axonn_no_memopt precision=fp16 optimizer.clip_norm=1.0",
    "suite run system=axonn_samo precision=bf16 grid.data=2 pruning.sparsity=0.9",
    "suite run system=axonn_samo memory=samo_offload precision=bf16",
    "suite run system=sputnik grid.inter=2",
    "suite run system=axonn_samo model=vgg_narrow data=digits optimizer=sgd grid.data=2",
    "suite run system=sparsity_aware_metis graph=amazon_like grid.data=2",
    "suite sweep system=cagnet,sparsity_aware partitioner=metis graph=protein_like grid.data=2",
    "suite sweep executor=simulated machine=summit,perlmutter,h200 system=axonn,one_f_one_b,deepspeed_3d"
    " model=gpt3_xl grid.inter=4 batch.size=64",
    "suite run executor=simulated executor.plan=search machine=h200 system=megatron_lm model=gpt3_175b"
    " grid.data=1024 batch.size=2048",
)
MINUTES = "takes minutes; composed and checked here"
COMPOSED = {  # checked up to the start of ranks; the reason why no test runs them as printed
    "suite run experiment=axonn_fig10": f"{MINUTES}; make reproduce runs it",
    "suite run system=axonn_samo pruning=early_bird pruning.ticket.epoch=5 measure.rounds=20": MINUTES,
    "suite run system=pipeoptim executor=replay model=alexnet_narrow data=digits optimizer=sgd optimizer.lr=0.01"
    " grid.inter=4 batch.size=56 measure.batches=29 measure.eval_batches=3 measure.validate=every_round": MINUTES,
    "suite sweep system=pipedream,pipedream_2bw,spectrain,pipeoptim model=vgg_16_narrow data=digits"
    " optimizer=sgd optimizer.lr=0.01 grid.inter=2 batch.size=64": MINUTES,
    "suite run experiment=samo_clusters": f"{MINUTES}; make reproduce runs it",
    "suite run experiment=axonn_clusters": f"{MINUTES}; make reproduce runs it",
    "suite run experiment=gnn_clusters": f"{MINUTES}; make reproduce runs it",
    "suite run experiment=emulated": f"{MINUTES}; make reproduce runs it",
    "suite run experiment=schedules": "takes ten seconds; make reproduce runs it",
    "suite run experiment=schedules_wide": MINUTES,
    "suite sweep experiment=schedules_rates": MINUTES,
    "suite run experiment=schedules_emulated": MINUTES,
}
OWN_FOLDER = "tests/distributed/test_document_examples.py runs it in the folder that the section describes"
ELSEWHERE = {  # run by another test, or not run for the reason given
    "make reproduce": "eleven minutes; run by hand in a fresh clone before a release",
    "make reproduce 'ARGS=--blind reports=reports/blind'": "eleven minutes; tests/laws/test_blind.py runs the option",
    "make kick-the-tires": "starts ranks and writes the page; run by hand in a fresh clone before a release",
    "suite claims answer samo.eq2.samo_bytes": "tests/unit/papers/test_answer.py",
    "suite claims answer 'schedules.zb.table2.*'": "tests/unit/papers/test_schedules.py",
    "suite claims where samo.eq2.samo_bytes": "needs the papers' texts; tests/unit/papers/test_passages.py",
    "suite claims mutate": "tests/laws/test_mutations.py",
    "suite claims sensitivity": "minutes; tests/unit/papers/test_sensitivity.py",
    "suite league": "one to two minutes; tests/unit/papers/test_league_file.py runs it on a few cells",
    "suite report --evidence docs/evidence.md reports=reports": "tests/unit/report/test_evidence_table.py",
    "python -m tests.pictures reports/index.html docs/pictures": "needs a browser and rewrites committed pictures",
    "make test": "this run",
    "suite run system=zbv schedule=torch_csv schedule.file=zbv.csv grid.inter=2": "needs the file before; "
    "tests/distributed/test_torch_schedules.py",
    "make doctor": "tests/unit/test_doctor.py calls the module that the target starts",
    "make report": "tests/unit/report calls the module that the target starts",
    "make reproduce SCALE=evening": "two hours; tests/unit/test_reproduce.py composes every experiment",
    "make reproduce SCALE=cluster LAUNCH=slurm": "wants a cluster; tests/slurm starts a real Slurm",
    "make reproduce PYTHON=python3 INSTALL=no": "eleven minutes",
    "suite run data=wikitext_103 data.folder=FOLDER system=axonn grid.inter=2": "wants a data set",
    "suite run system=sparsity_aware_metis graph=matrix_market graph.source.file=FILE.mtx grid.data=4": (
        "wants a file; tests/unit/data/graphs reads small ones"
    ),
    "suite tune system=axonn,deepspeed_3d model=gpt_tiny tune.devices=2": "tests/distributed/test_tune.py",
    "cp conf/launch/site_template.yaml conf/launch/mysite.yaml": "tests/unit/runner/test_slurm.py reads the template",
    "suite sweep launch=mysite experiment=axonn_fig10 --dry-run": "tests/unit/runner/test_slurm_sweep.py",
    "suite sweep launch=mysite system=axonn,gpipe grid.inter=2,4": "tests/slurm/test_slurm.py",
    "make reproduce SCALE=cluster LAUNCH=mysite": "wants a cluster",
    "make nightly": "half an hour; tests/unit/regression/nightly makes nightly runs of given records",
    "suite compare reports.old reports": "tests/unit/regression/test_comparison.py",
    "suite compare 2026-11-21 2026-11-22 --metric batch_time --json changes.json": "tests/unit/regression/nightly",
    "make ae-bundle": "tests/unit/artifact calls the module that the target starts",
    "suite artifact --check FILE": "tests/unit/artifact",
    "mpiexec -n 2 python -m mpi4py train.py": "tests/distributed/test_document_examples.py",
    "torchrun --nproc-per-node 2 train.py": "tests/distributed/test_document_examples.py",
    "suite draw launch.python_path=[mine] system=waves grid.inter=3": OWN_FOLDER,
    "suite run launch.python_path=[mine] system=waves schedule.wave=4 grid.inter=2": OWN_FOLDER,
    "suite conformance launch.python_path=[mine] system=waves": OWN_FOLDER,
    "suite run launch.python_path=[mine] model=gpt_mine system=axonn grid.inter=2": OWN_FOLDER,
    "suite run launch.python_path=[mine] executor=simulated machine=lab system=axonn model=gpt3_xl grid.inter=4"
    " grid.data=4 batch.size=64": OWN_FOLDER,
    "suite run launch.python_path=[mine] experiment=waves_and_gpipe": OWN_FOLDER,
    "suite run launch.python_path=[mine] executor=simulated machine=summit system=waves model=gpt3_xl"
    " grid.inter=4 batch.size=64": OWN_FOLDER,
    "suite check FILE.csv": "tests/unit/cli/test_schedule_file.py",
    "suite check FILE.csv executor.ticks.backward=3": "tests/unit/cli/test_schedule_file.py",
    "suite draw FILE.csv": "tests/unit/cli/test_schedule_file.py",
    "make benchmark": "minutes; tests/benchmarks holds the benchmarks",
    "make soak": "an hour; .ci/run runs a slice",
}


def plain(command: str) -> str:
    """A table's key as commands() spells it."""
    return shlex.join(shlex.split(command))


def test_every_command_has_exactly_one_place() -> None:
    listed = [plain(command) for command in (*SECONDS, *RANKS, *COMPOSED, *ELSEWHERE)]
    assert sorted(listed) == sorted(set(listed))
    assert set(listed) == set(commands())


def executed(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command as printed, with this interpreter and in a folder of its own."""
    words = shlex.split(command)
    if words[0] == "suite":
        words[:1] = [sys.executable, "-m", "suite"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("OMPI_")}
    env |= {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize(
    "command", [*SECONDS, *(pytest.param(command, marks=pytest.mark.exhaustive) for command in RANKS)]
)
def test_command_runs_as_printed(command: str, tmp_path: Path) -> None:
    if command in RANKS:
        needs("mpiexec")
    done = executed(command, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    if not command.startswith(("suite draw", "suite plan")):  # which write no record
        records = [Record.read(file) for file in (tmp_path / "reports" / "records").glob("*.json")]
        assert records
        assert {record.outcome for record in records} == {Outcome.OK}


def jobs(words: list[str]) -> list[list[str]]:
    """The overrides of each job of `suite run` (one) or `suite sweep` (every combination)."""
    if words[1] == "run":
        return [words[2:]]
    choices = []
    for override in OverridesParser.create().parse_overrides(words[2:]):
        values = list(override.sweep_string_iterator()) if override.is_sweep_override() else [override.input_line]
        key = str(override.key_or_group)
        choices.append([value if "=" in str(value) else f"{key}={value}" for value in values])
    return [list(job) for job in itertools.product(*choices)]


@pytest.mark.parametrize("command", [*RANKS, *COMPOSED])
def test_parent_accepts_every_run_of_the_command(command: str) -> None:
    words = shlex.split(command)
    assert words[:2] in SUITE
    for job in jobs(words):
        for run in expand(job):
            assert run.refusal is None, (job, run.refusal)


@pytest.mark.parametrize("target", sorted({line.split()[1] for line in commands() if line.startswith("make ")}))
def test_make_target_exists(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
