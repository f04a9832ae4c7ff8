"""Lines of the doctor: each failure has a state, a reason and a remedy.

The doctor never hangs, prints no traceback and removes no file. One test probes real ranks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from suite.cli.doctor import run_checks
from suite.cli.main import main
from suite.core import load
from suite.doctor import checks, probe
from suite.doctor import measure as measuring
from suite.doctor.finding import ABSENT, BROKEN, UNKNOWN, WORKS, CheckFailed, ComponentCheck, ComponentState
from suite.doctor.measure import FILE, TRIES
from suite.doctor.probe import ProbeOutput, attempt
from suite.simulate.network.machine import measured
from tests.support.tools import needs
from tests.support.waiting import patience

BY_NAME = {check.name: check for check in checks.CHECKS}
NEEDED = {"Python", "machine", "packages", "torch", "gloo", "mpi4py", "mpiexec", "disk", "reports"}
TORCH = {"torch": "9.9", "built": None, "cuda": [], "threads": 3, "nccl": False, "gloo": True, "sum": 2.0}
LATE = ProbeOutput("", "python was not done after 15 s", late=True)

Patch = pytest.MonkeyPatch
Replaced = dict[str, Any]  # names in suite.doctor.checks, with their values in a case


@pytest.fixture(autouse=True)
def _fresh() -> None:
    probe.torch_ranks.output = probe.mpi_ranks.output = None


def json_lines(**facts: Any) -> str:
    """Facts, one a line, between other output."""
    lines = (json.dumps({name: value}) for name, value in facts.items())
    return "\n".join(['[INFO] {"torch": broken', *lines, "7"])


def torch_said(output: ProbeOutput) -> Replaced:
    return {"torch_ranks": lambda: output}


def torch_report(**facts: Any) -> Replaced:
    return torch_said(ProbeOutput(json_lines(**TORCH | facts)))


def mpi_said(output: ProbeOutput) -> Replaced:
    return {"mpi_ranks": lambda: output}


def mpi_report(**facts: Any) -> Replaced:
    return mpi_said(ProbeOutput(json_lines(**facts)))


def program_said(text: str = "", reason: str = "", late: bool = False) -> Replaced:
    return {"attempt": lambda *_, **__: ProbeOutput(text, reason, late), "shutil.which": lambda name: f"/bin/{name}"}


def no_package(name: str) -> Replaced:
    return {"installed": lambda other: "" if other == name else "1"}


def no_writing(**_: Any) -> None:
    raise PermissionError(13, "Permission denied")


NO_PROGRAM: Replaced = {"shutil.which": lambda _: None, "find_spec": lambda _: None}
FREE = SimpleNamespace

# the component, what is replaced, its state, and names or numbers of its line
CASES: list[tuple[str, Replaced, str, str]] = [
    ("Python", {"sys.version_info": (3, 10, 1)}, BROKEN, "python3.11"),
    ("Python", {"sys.version_info": (3, 11)}, WORKS, ""),
    ("packages", no_package("scipy"), ABSENT, "scipy of "),
    ("torch", torch_said(LATE), UNKNOWN, "15 s"),
    ("torch", torch_report(), WORKS, "9.9, a CPU build, 3 threads"),
    ("gloo", torch_report(gloo=False), ABSENT, ""),
    ("gloo", torch_report(sum=1.0), BROKEN, "1 + 1 is 1.0"),
    ("gloo", torch_said(LATE), UNKNOWN, "see torch"),
    ("gloo", torch_report(), WORKS, ""),
    ("mpi4py", program_said(reason="cannot load it"), BROKEN, "cannot load it"),
    ("mpiexec", mpi_report(library="MPICH 5", size=1), BROKEN, "MPICH 5"),
    ("mpiexec", mpi_said(LATE), UNKNOWN, "15 s"),
    ("mpiexec", mpi_report(library="Open MPI v9", size=2, moved=True), WORKS, "Open MPI v9"),
    ("root, many ranks", {"os.geteuid": lambda: 1000}, WORKS, ": not root, "),
    ("kernel copies", mpi_report(size=2, moved=False), ABSENT, "4 MiB"),
    ("kernel copies", mpi_said(LATE), UNKNOWN, "see mpiexec"),
    ("kernel copies", mpi_report(size=2, moved=True), WORKS, "4 MiB"),
    ("CUDA", torch_report(), ABSENT, "CPU build"),
    ("CUDA", torch_report(built="13.0"), ABSENT, "no device"),
    ("CUDA", torch_report(built="13.0", cuda=["H200", "H200"]), WORKS, "2 x H200"),
    ("NCCL", torch_report(cuda=["H200"]), ABSENT, "built without it"),
    ("NCCL", torch_report(nccl=True), ABSENT, "no CUDA device"),
    ("NCCL", torch_report(nccl=True, cuda=["H200"]), WORKS, "comm.transport=nccl"),
    ("DeepSpeed", no_package("deepspeed"), ABSENT, ""),
    ("DeepSpeed", torch_report(deepspeed_error="hjson"), BROKEN, "hjson"),
    ("DeepSpeed", torch_said(ProbeOutput(json_lines(**TORCH), "ended with -11")), BROKEN, "ended with -11"),
    ("DeepSpeed", torch_said(ProbeOutput(json_lines(**TORCH), "late", late=True)), UNKNOWN, "late"),
    ("DeepSpeed", torch_report(deepspeed="0.1"), WORKS, "0.1"),
    ("compiler", program_said(reason="killed"), BROKEN, "killed"),
    ("Chromium", program_said(reason="libnss3.so"), BROKEN, "libnss3.so"),
    ("Chromium", program_said(reason="late", late=True), UNKNOWN, "late"),
    ("pytest-benchmark", no_package("pytest-benchmark"), ABSENT, "not installed"),
    ("Slurm", NO_PROGRAM, ABSENT, "no sinfo and no sbatch"),
    ("Slurm", program_said(reason="Unable to contact"), BROKEN, "Unable to contact"),
    ("Slurm", program_said("debug* 2\nlong 64\n"), WORKS, "debug* 2, long 64"),
    ("disk", {"shutil.disk_usage": lambda _: FREE(free=38e6)}, BROKEN, "38 MB"),
    ("disk", {"shutil.disk_usage": lambda _: FREE(free=1e9)}, WORKS, "1 GB"),
    ("reports", {"tempfile.TemporaryFile": no_writing}, BROKEN, "Permission denied"),
]


def test_failed_check_reports_state_reason_and_remedy(monkeypatch: Patch) -> None:
    for name, replaced, state, words in CASES:
        with monkeypatch.context() as patch:
            for path, value in replaced.items():
                patch.setattr(f"suite.doctor.checks.{path}", value)
            finding = BY_NAME[name].finding()
        line = finding.line()
        assert finding.state == state, line
        assert line.startswith(f"{name} "), line
        assert words in line, line
        assert bool(finding.remedy) is ("| do this: " in line) is (state != WORKS), line
        assert "\n" not in line, line


def test_unexpected_error_is_a_failed_check() -> None:
    def look() -> str:
        raise KeyError("gone")

    finding = ComponentCheck("x", look).finding()
    assert (finding.state, finding.remedy) == (BROKEN, "make install")
    assert "KeyError" in finding.detail
    assert ComponentState("x", BROKEN, "a\nb", "c\nd").line().endswith("does not work because a b | do this: c d")


@pytest.mark.parametrize("state", [ABSENT, BROKEN, UNKNOWN])
@pytest.mark.parametrize("needed", [True, False])
def test_components_that_a_laptop_needs_decide_the_exit_status(
    capsys: pytest.CaptureFixture[str], state: str, needed: bool
) -> None:
    def look() -> str:
        raise CheckFailed("it is so", "that", state)

    assert {check.name for check in checks.CHECKS if check.needed} == NEEDED
    good, bad = ComponentCheck("good", lambda: "yes", needed=True), ComponentCheck("bad", look, needed=needed)
    assert run_checks([good, bad]) == (1 if needed else 0)
    first, second, *_, last = capsys.readouterr().out.splitlines()
    assert first == "good               works: yes"
    assert second == f"bad                {state} because it is so | do this: that"
    assert ("needs bad" in last) is needed


# -- programs -------------------------------------------------------------------------------------------------------


def test_hanging_program_is_ended_with_its_children() -> None:
    child = "sleep 597.25"
    output = attempt(["sh", "-c", f"echo here; {child}; true"], 0.5)
    assert (output.late, output.text) == (True, "here\n")
    assert "0.5 s" in output.reason
    assert child.split() not in [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]


def test_failed_program_reports_its_reason() -> None:
    assert attempt(["echo", "1"]) == ProbeOutput("1\n")
    assert attempt(["sh", "-c", "echo first; echo the last; exit 3"]).reason == "sh ended with 3: the last"
    assert attempt(["sh", "-c", "echo out; echo err >&2; exit 1"]).reason == "sh ended with 1: err"
    assert "No such file" in attempt(["/no/such/program"]).reason


def test_concurrent_checks_share_one_probe() -> None:
    calls, ready = [], Barrier(5)

    def look() -> ProbeOutput:
        calls.append(1)
        return ProbeOutput("found")

    shared = probe.RunOnce(look)

    def check(_: int) -> ProbeOutput:
        ready.wait()
        return shared()

    with ThreadPoolExecutor(max_workers=5) as pool:
        assert list(pool.map(check, range(5))) == [ProbeOutput("found")] * 5
    assert len(calls) == 1


@pytest.mark.slow("probes on real ranks")
def test_doctor_probes_real_ranks_and_prints_a_line_per_component(
    tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a network interface gloo fails and torch does not.

    Without kernel-assisted copies a large message waits for its sender's next call.
    """
    needs("mpiexec")
    monkeypatch.setattr(probe, "PATIENCE", patience(20))
    monkeypatch.setattr(measuring, "measure", lambda folder: f"measured for {folder}")
    for name, value in {
        "PATH": "/nowhere",
        "TORCH_EXTENSIONS_DIR": "/nowhere",
        "GLOO_SOCKET_IFNAME": "no-such-interface",
        "OMPI_MCA_smsc": "^cma,xpmem,knem",
    }.items():
        monkeypatch.setenv(name, value)
    assert main(["doctor", f"reports={tmp_path}"]) == 1
    *lines, measured, _, last = capsys.readouterr().out.splitlines()
    assert len(lines) == len(checks.CHECKS)
    found = {}
    for line, check in zip(lines, checks.CHECKS, strict=True):
        assert line.startswith(f"{check.name:<18} ")
        (found[check.name],) = [state for state in (WORKS, ABSENT, BROKEN, UNKNOWN) if line[19:].startswith(state)]
    assert measured.endswith(f"measured for {tmp_path}")
    assert "gloo" in last
    states = {"torch": WORKS, "gloo": BROKEN, "mpi4py": WORKS, "mpiexec": WORKS, "Slurm": ABSENT, "Chromium": ABSENT}
    assert {name: found[name] for name in states} == states
    facts = probe.mpi_ranks().facts
    assert facts["size"] == 2
    if "Open MPI" in facts["library"]:
        assert found["kernel copies"] == ABSENT


# -- a busy machine: it is measured again, named, and does not replace the file of a quieter one --

GOOD = {"rate": 6e10, "copied": 1e10, "latency": 0.47e-6, "bandwidth": 9e9}
BAD = {"rate": 2e10, "copied": 4e9, "latency": 1.99e-3, "bandwidth": 1e9}
BUSY = [(BAD, 1.5)] * TRIES  # results of measurements, and the cores that others use during each


def without_load(file: Path) -> None:
    content = json.loads(file.read_text())
    del content["foreign_cores"]
    file.write_text(json.dumps(content))


def of_another_machine(file: Path) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {"source": "another machine"}))


@pytest.mark.parametrize(
    ("earlier", "change", "now", "busy", "stays"),
    [
        ([(GOOD, 0.05)], None, BUSY, True, GOOD),
        ([(GOOD, 0.05)], Path.unlink, BUSY, True, BAD),  # as the line says, to force it
        ([(GOOD, 0.0)], without_load, BUSY, True, GOOD),
        ([(GOOD, 0.0)], of_another_machine, BUSY, True, BAD),
        (BUSY, None, [(GOOD, 0.8)] * TRIES, True, GOOD),
        (BUSY, None, [(GOOD, 1.5)] * TRIES, True, GOOD),  # the newest of equally busy ones
        (BUSY, None, [(BAD, 1.5), (GOOD, 0.1)], False, GOOD),  # a busy moment is measured again
    ],
)
def test_busy_machine_keeps_the_better_file_and_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    earlier: list[tuple[dict[str, float], float]],
    change: Callable[[Path], None] | None,
    now: list[tuple[dict[str, float], float]],
    busy: bool,
    stays: dict[str, float],
) -> None:
    plan = [*earlier, *now]
    monkeypatch.setattr(measuring, "_measure_once", lambda: dict(plan[0][0]))
    monkeypatch.setattr(load, "foreign_cores", lambda before, after: plan.pop(0)[1])
    assert ("busy: " in measuring.measure(tmp_path)) is (earlier is BUSY)
    if change is not None:
        change(tmp_path / FILE)
    assert ("busy: " in measuring.measure(tmp_path)) is busy
    assert measured(name="local", file=str(tmp_path / FILE)).within.latency == stays["latency"]
    assert not plan, "as many measurements, no more"
