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
from ranks import ROOT
from tools import needs

from suite.bench.runs import expand
from suite.core.record import Outcome, Record

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXT = "\n".join(path.read_text() for path in DOCUMENTS)
PROGRAMS = ("python", "make", "mpiexec", "torchrun", "cp")
SUITE = ["python", "-m", "suite"]


def commands() -> list[str]:
    """The indented command lines of all documents, in order, without their comments."""
    lines = re.findall(rf"^    ((?:{'|'.join(PROGRAMS)}) .*)$", TEXT, flags=re.M)
    return list(dict.fromkeys(shlex.join(shlex.split(line, comments=True)) for line in lines))


SECONDS = (  # no ranks
    "python -m suite executor=check system=pipeoptim grid.inter=4",
    "python -m suite.draw system=axonn grid.inter=3 draw.microbatches=5",
    "python -m suite.draw system=pipeoptim grid.inter=4",
    "python -m suite.draw system=sparsity_aware_metis graph=protein_like grid.data=4",
    "python -m suite executor=simulated machine=summit stack=samo system=axonn_samo model=gpt3_13b grid.inter=8"
    " grid.data=64 batch.size=2048 batch.microbatch=1",
    "python -m suite system=sparsity_aware_gvb graph=amazon_like grid.data=64 exchange.replication=2 executor=volumes",
)
RANKS = (  # one or two ranks, or several runs: behind the mark
    "python -m suite system=axonn model=gpt_tiny grid.inter=2 grid.data=1",
    "python -m suite -m system=axonn,gpipe grid.inter=1,2",
    "python -m suite system=axonn grid.inter=2 comm.transport=gloo launch.launcher=torchrun",
    "python -m suite model=vgg_narrow data=digits optimizer=sgd optimizer.lr=0.02 grid.data=2",
    "python -m suite system=axonn precision=bf16 grid.inter=2 activation_checkpointing=auto",
    "python -m suite system=axonn precision=auto grid.data=2 optimizer.bucket_numel=200000"
    " optimizer.buckets_per_reduction=2",
    "python -m suite system=axonn_no_memopt precision=fp16 optimizer.clip_norm=1.0",
    "python -m suite system=axonn_samo precision=bf16 grid.data=2 pruning.sparsity=0.9",
    "python -m suite system=axonn_samo memory=samo_offload precision=bf16",
    "python -m suite system=sputnik grid.inter=2",
    "python -m suite system=axonn_samo model=vgg_narrow data=digits optimizer=sgd grid.data=2",
    "python -m suite system=sparsity_aware_metis graph=amazon_like grid.data=2",
    "python -m suite -m system=cagnet,sparsity_aware partitioner=metis graph=protein_like grid.data=2",
    "python -m suite -m executor=simulated machine=summit,perlmutter,h200 system=axonn,one_f_one_b,deepspeed_3d"
    " model=gpt3_xl grid.inter=4 batch.size=64",
    "python -m suite executor=simulated executor.plan=search machine=h200 system=megatron_lm model=gpt3_175b"
    " grid.data=1024 batch.size=2048",
)
MINUTES = "takes minutes; composed and checked here"
COMPOSED = {  # checked up to the start of ranks; the reason why no test runs them as printed
    "python -m suite experiment=axonn_fig10": f"{MINUTES}; make reproduce runs it",
    "python -m suite system=axonn_samo pruning=early_bird pruning.ticket.epoch=5 measure.rounds=20": MINUTES,
    "python -m suite system=pipeoptim executor=replay model=alexnet_narrow data=digits optimizer=sgd optimizer.lr=0.01"
    " grid.inter=4 batch.size=56 measure.batches=29 measure.eval_batches=3 measure.validate=every_round": MINUTES,
    "python -m suite -m system=pipedream,pipedream_2bw,spectrain,pipeoptim model=vgg_16_narrow data=digits"
    " optimizer=sgd optimizer.lr=0.01 grid.inter=2 batch.size=64": MINUTES,
    "python -m suite experiment=samo_clusters": f"{MINUTES}; make reproduce runs it",
    "python -m suite experiment=axonn_clusters": f"{MINUTES}; make reproduce runs it",
    "python -m suite experiment=gnn_clusters": f"{MINUTES}; make reproduce runs it",
    "python -m suite experiment=emulated": f"{MINUTES}; make reproduce runs it",
}
OWN_FOLDER = "tests/distributed/test_document_examples.py runs it in the folder that the section describes"
ELSEWHERE = {  # run by another test, or by nobody for the reason given
    "make reproduce": "ten minutes; run by hand in a fresh clone before a release",
    "make reproduce 'ARGS=--blind reports=reports/blind'": "ten minutes; tests/laws/test_blind.py runs the option",
    "make kick-the-tires": "starts ranks and writes the page; run by hand in a fresh clone before a release",
    "python -m suite.papers answer samo.eq2.samo_bytes": "tests/unit/papers/test_answer.py",
    "python -m suite.papers where samo.eq2.samo_bytes": "needs the papers' texts; tests/unit/papers/test_passages.py",
    "python -m suite.papers mutate": "tests/laws/test_mutations.py",
    "python -m suite.papers sensitivity": "minutes; tests/unit/papers/test_sensitivity.py",
    "python -m suite.report --evidence docs/evidence.md reports=reports": "tests/unit/report/test_evidence_table.py",
    "python -m tests.pictures reports/index.html docs/pictures": "needs a browser and rewrites committed pictures",
    "make test": "this run",
    "make doctor": "tests/unit/test_doctor.py calls the module that the target starts",
    "make report": "tests/unit/report calls the module that the target starts",
    "make reproduce SCALE=evening": "two hours; tests/unit/test_reproduce.py composes every experiment",
    "make reproduce SCALE=cluster LAUNCH=slurm": "wants a cluster; tests/slurm starts a real Slurm",
    "make reproduce PYTHON=python3 INSTALL=no": "ten minutes",
    "python -m suite data=wikitext_103 data.folder=FOLDER system=axonn grid.inter=2": "wants a data set",
    "python -m suite system=sparsity_aware_metis graph=matrix_market graph.source.file=FILE.mtx grid.data=4": (
        "wants a file; tests/unit/data/graphs reads small ones"
    ),
    "python -m suite.tune system=axonn,deepspeed_3d model=gpt_tiny tune.devices=2": "tests/distributed/test_tune.py",
    "cp conf/launch/site_template.yaml conf/launch/mysite.yaml": "tests/unit/bench/test_slurm.py reads the template",
    "python -m suite -m launch=mysite experiment=axonn_fig10 --dry-run": "tests/unit/bench/test_slurm_sweep.py",
    "python -m suite -m launch=mysite system=axonn,gpipe grid.inter=2,4": "tests/slurm/test_slurm.py",
    "make reproduce SCALE=cluster LAUNCH=mysite": "wants a cluster",
    "make nightly": "half an hour; tests/unit/nightly runs nights of given records",
    "python -m suite.compare reports.old reports": "tests/unit/compare",
    "python -m suite.compare 2026-11-21 2026-11-22 --metric batch_time --json changes.json": "tests/unit/nightly",
    "make ae-bundle": "tests/unit/bundle calls the module that the target starts",
    "python -m suite.bundle --check FILE": "tests/unit/bundle",
    "mpiexec -n 2 python -m mpi4py train.py": "tests/distributed/test_document_examples.py",
    "torchrun --nproc-per-node 2 train.py": "tests/distributed/test_document_examples.py",
    "python -m suite.draw launch.python_path=[mine] system=waves grid.inter=3": OWN_FOLDER,
    "python -m suite launch.python_path=[mine] system=waves schedule.wave=4 grid.inter=2": OWN_FOLDER,
    "python -m suite.conformance launch.python_path=[mine] system=waves": OWN_FOLDER,
    "python -m suite launch.python_path=[mine] model=gpt_mine system=axonn grid.inter=2": OWN_FOLDER,
    "python -m suite launch.python_path=[mine] executor=simulated machine=lab system=axonn model=gpt3_xl grid.inter=4"
    " grid.data=4 batch.size=64": OWN_FOLDER,
    "python -m suite launch.python_path=[mine] experiment=waves_beside": OWN_FOLDER,
    "python -m suite launch.python_path=[mine] executor=simulated machine=summit system=waves model=gpt3_xl"
    " grid.inter=4 batch.size=64": OWN_FOLDER,
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
    if words[0] == "python":
        words[0] = sys.executable
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
    if not command.startswith("python -m suite.draw"):
        records = [Record.read(file) for file in (tmp_path / "reports" / "records").glob("*.json")]
        assert records
        assert {record.outcome for record in records} == {Outcome.OK}


def jobs(words: list[str]) -> list[list[str]]:
    """The overrides of each job of a command line: one, or every combination of a sweep (-m)."""
    if "-m" not in words:
        return [words]
    choices = []
    for override in OverridesParser.create().parse_overrides([word for word in words if word != "-m"]):
        values = list(override.sweep_string_iterator()) if override.is_sweep_override() else [override.input_line]
        key = str(override.key_or_group)
        choices.append([value if "=" in str(value) else f"{key}={value}" for value in values])
    return [list(job) for job in itertools.product(*choices)]


@pytest.mark.parametrize("command", [*RANKS, *COMPOSED])
def test_parent_accepts_every_run_of_the_command(command: str) -> None:
    words = shlex.split(command)
    assert words[:3] == SUITE
    for job in jobs(words[3:]):
        for run in expand(job):
            assert run.refusal is None, (job, run.refusal)


@pytest.mark.parametrize("target", sorted({line.split()[1] for line in commands() if line.startswith("make ")}))
def test_make_target_exists(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
