"""Lines of the doctor: each failure has a reason and a remedy.

The doctor never hangs, prints no traceback and removes no file. Tests of real probes start real ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from suite.cli.doctor import run_checks
from suite.comm.rendezvous import mpiexec_flags
from suite.doctor import checks, probe
from suite.doctor.finding import ABSENT, BROKEN, UNKNOWN, WORKS, CheckFailed, ComponentCheck, ComponentState
from suite.doctor.probe import ProbeOutput, attempt
from suite.runner.launch.stale_build_locks import build_folders, stale_locks
from tests.support.tools import needs

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {check.name: check for check in checks.CHECKS}
TORCH = {"torch": "9.9", "built": None, "cuda": [], "threads": 3, "nccl": False, "gloo": True, "sum": 2.0}
LATE = ProbeOutput("", "python was not done after 15 s", late=True)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    probe.torch_ranks.output = probe.mpi_ranks.output = None


Patch = pytest.MonkeyPatch


def json_lines(**facts: Any) -> str:
    import json

    return "".join(f"{json.dumps({name: value})}\n" for name, value in facts.items())


def says(patch: Patch, probed: str, output: ProbeOutput) -> None:
    patch.setattr(checks, probed, lambda: output)


def torch_report(**facts: Any) -> Callable[[Patch], None]:
    return lambda patch: says(patch, "torch_ranks", ProbeOutput(json_lines(**TORCH | facts), ""))


def torch_said(output: ProbeOutput) -> Callable[[Patch], None]:
    return lambda patch: says(patch, "torch_ranks", output)


def mpi_said(output: ProbeOutput) -> Callable[[Patch], None]:
    return lambda patch: says(patch, "mpi_ranks", output)


def program_said(output: ProbeOutput) -> Callable[[Patch], None]:
    def arrange(patch: Patch) -> None:
        patch.setattr(checks, "attempt", lambda *_, **__: output)
        patch.setattr(checks.shutil, "which", lambda name: f"/bin/{name}")

    return arrange


def no_package(name: str) -> Callable[[Patch], None]:
    original = checks.installed
    return lambda patch: patch.setattr(
        checks, "installed", lambda program: "" if program == name else original(program) or "1"
    )


def no_program(patch: Patch) -> None:
    patch.setattr(checks.shutil, "which", lambda _: None)
    patch.setattr(checks, "find_spec", lambda _: None)
    patch.setattr("suite.comm.rendezvous.mpiexec_flags.find_mpiexec", lambda _: None)


def root_user(patch: Patch) -> None:
    patch.setattr(checks.os, "geteuid", lambda: 0)
    for name in mpiexec_flags.ROOT_VARIABLES:
        patch.delenv(name, raising=False)


def common_user(patch: Patch) -> None:
    patch.setattr(checks.os, "geteuid", lambda: 1000)


def full_disk(patch: Patch) -> None:
    patch.setattr(checks.shutil, "disk_usage", lambda _: SimpleNamespace(free=38e6))


def no_writing(patch: Patch) -> None:
    def refuse(**_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    patch.setattr(checks.tempfile, "TemporaryFile", refuse)


def old_python(patch: Patch) -> None:
    patch.setattr(checks.sys, "version_info", (3, 10, 1))


def broken_module(patch: Patch) -> None:
    patch.setitem(sys.modules, "suite.runner.provenance", None)


def locked(patch: Patch) -> None:
    patch.setattr("suite.runner.launch.stale_build_locks.stale_locks", lambda _: [Path("/c a/lock"), Path("/d/lock")])


OK_MPI = ProbeOutput(json_lines(library="Open MPI v9", size=2, moved=True), "")
# the component, what is done to it, its state, and words of its line
CASES: list[tuple[str, Callable[[Patch], None], str, tuple[str, ...]]] = [
    ("Python", old_python, BROKEN, ("this is Python", "do this: make install PYTHON=python3.11")),
    ("machine", broken_module, BROKEN, ("suite.runner.provenance", "do this: make install")),
    ("packages", no_package("scipy"), ABSENT, ("scipy of ", "packages are not installed", "do this: make install")),
    (
        "torch",
        torch_said(ProbeOutput("", "ended with 1: ModuleNotFoundError")),
        BROKEN,
        ("ModuleNotFoundError", "make install"),
    ),
    ("torch", torch_said(LATE), UNKNOWN, ("not done after 15 s", "when the machine is idle")),
    ("torch", torch_report(), WORKS, ("9.9, a CPU build, 3 threads",)),
    ("gloo", torch_report(gloo=False), ABSENT, ("torch was built without it",)),
    ("gloo", torch_report(sum=1.0), BROKEN, ("two ranks do not add: 1 + 1 is 1.0", "GLOO_SOCKET_IFNAME")),
    ("gloo", torch_report(sum=None, gloo_error="RuntimeError: no interface"), BROKEN, ("no interface",)),
    ("gloo", torch_said(LATE), UNKNOWN, ("torch reports nothing", "see torch")),
    ("gloo", torch_report(), WORKS, ("two ranks add",)),
    ("mpi4py", no_package("mpi4py"), ABSENT, ("not installed", "make install")),
    (
        "mpi4py",
        program_said(ProbeOutput("", "ended with 1: cannot load MPI library")),
        BROKEN,
        ("no MPI library", "load an MPI"),
    ),
    ("mpi4py", program_said(LATE), UNKNOWN, ("not done after", "idle")),
    ("mpiexec", no_program, ABSENT, ("none next to this Python", "make install, or load your cluster's MPI")),
    (
        "mpiexec",
        mpi_said(ProbeOutput(json_lines(library="MPICH 5", size=1), "")),
        BROKEN,
        ("alone", "MPICH 5", "one MPI"),
    ),
    ("mpiexec", mpi_said(ProbeOutput("", "mpiexec ended with 1: not enough slots")), BROKEN, ("not enough slots",)),
    ("mpiexec", mpi_said(LATE), UNKNOWN, ("not done after", "idle")),
    ("mpiexec", mpi_said(OK_MPI), WORKS, ("Open MPI v9, two ranks start and talk",)),
    ("root, many ranks", root_user, WORKS, ("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",)),
    ("root, many ranks", common_user, WORKS, ("not root", "OVERSUBSCRIBE")),
    (
        "kernel copies",
        mpi_said(ProbeOutput(json_lines(size=2, moved=False), "")),
        ABSENT,
        ("only while both", "ptrace"),
    ),
    ("kernel copies", mpi_said(LATE), UNKNOWN, ("do not talk", "see mpiexec")),
    ("kernel copies", no_program, ABSENT, ("none next to this Python",)),
    ("CUDA", torch_report(), ABSENT, ("CPU build", "nothing on a laptop")),
    ("CUDA", torch_report(built="13.0"), ABSENT, ("torch sees no device",)),
    ("CUDA", torch_report(built="13.0", cuda=["H200", "H200"]), WORKS, ("2 x H200",)),
    ("NCCL", torch_report(), ABSENT, ("built without it", "mpi or gloo")),
    ("NCCL", torch_report(nccl=True), ABSENT, ("no CUDA device",)),
    ("NCCL", torch_report(nccl=True, cuda=["H200"]), WORKS, ("comm.transport=nccl",)),
    ("DeepSpeed", no_package("deepspeed"), ABSENT, ("not installed", "DS_BUILD_OPS=0 make install")),
    ("DeepSpeed", torch_report(deepspeed_error="ImportError: hjson"), BROKEN, ("does not import: ImportError: hjson",)),
    ("DeepSpeed", torch_said(ProbeOutput(json_lines(**TORCH), "python ended with -11")), BROKEN, ("ended with -11",)),
    ("DeepSpeed", torch_said(ProbeOutput(json_lines(**TORCH), "late", late=True)), UNKNOWN, ("late", "idle")),
    ("DeepSpeed", torch_report(deepspeed="0.1"), WORKS, ("0.1 imports",)),
    ("build locks", locked, BROKEN, ("wait for '/c a/lock' /d/lock", "do this: rm '/c a/lock' /d/lock")),
    ("compiler", no_program, ABSENT, ("no C++ compiler and no ninja", "optional kernels")),
    ("compiler", program_said(ProbeOutput("", "g++ ended with 4: killed")), BROKEN, ("killed", "CXX")),
    ("Triton", no_package("triton"), ABSENT, ("not installed", "nothing")),
    ("Chromium", no_program, ABSENT, ("none on the PATH", "apt-get install chromium")),
    ("Chromium", program_said(ProbeOutput("", "ended with 127: libnss3.so")), BROKEN, ("libnss3.so", "--reinstall")),
    ("Chromium", program_said(LATE), UNKNOWN, ("not done after",)),
    ("pytest-benchmark", no_package("pytest-benchmark"), ABSENT, ("not installed", "make install")),
    ("Slurm", no_program, ABSENT, ("no sinfo and no sbatch", "nothing on a laptop")),
    (
        "Slurm",
        program_said(ProbeOutput("", "sinfo ended with 1: Unable to contact")),
        BROKEN,
        ("Unable to contact", "scontrol"),
    ),
    ("Slurm", program_said(ProbeOutput("debug* 2\nlong 64\n")), WORKS, ("debug* 2, long 64",)),
    ("disk", full_disk, BROKEN, ("has 38 MB free", "make room: 1 GB")),
    ("reports", no_writing, BROKEN, ("cannot be written: Permission denied", "reports=FOLDER")),
]


@pytest.mark.parametrize(("name", "harm", "state", "words"), CASES, ids=[f"{c[0]}-{n}" for n, c in enumerate(CASES)])
def test_failed_check_reports_reason_and_remedy(
    monkeypatch: Patch, name: str, harm: Callable[[Patch], None], state: str, words: tuple[str, ...]
) -> None:
    harm(monkeypatch)
    finding = BY_NAME[name].finding()
    line = finding.line()
    assert finding.state == state, line
    assert line.startswith(f"{name} ")
    assert (": " if state == WORKS else f"{state} because ") in line
    assert ("| do this: " in line) is (state != WORKS)
    assert "\n" not in line
    for word in words:
        assert word in line


def test_every_component_has_a_failing_case() -> None:
    failing = {name for name, _, state, _ in CASES if state != WORKS}
    assert {check.name for check in checks.CHECKS} - failing == {"root, many ranks"}  # which only tells


def test_result_is_a_single_line() -> None:
    assert ComponentState("x", WORKS, "a\n  b").line().endswith("works: a b")
    assert ComponentState("x", BROKEN, "a\nb", "c\nd").line().endswith("does not work because a b | do this: c d")


@pytest.mark.parametrize("error", [KeyError("gone"), ImportError("No module named 'psutil'"), OSError(5, "I/O")])
def test_unexpected_error_is_a_failed_check(error: Exception) -> None:
    def look() -> str:
        raise error

    finding = ComponentCheck("x", look).finding()
    assert (finding.state, finding.remedy) == (BROKEN, "make install")
    assert type(error).__name__ in finding.detail


def ill(state: str) -> Callable[[], str]:
    def look() -> str:
        raise CheckFailed("it is so", "that", state)

    return look


@pytest.mark.parametrize(
    ("state", "needed", "code"),
    [(ABSENT, True, 1), (BROKEN, True, 1), (UNKNOWN, True, 1), (ABSENT, False, 0), (BROKEN, False, 0)],
)
def test_only_what_a_laptop_needs_decides_the_exit_status(
    capsys: pytest.CaptureFixture[str], state: str, needed: bool, code: int
) -> None:
    assert (
        run_checks(
            [ComponentCheck("good", lambda: "yes", needed=True), ComponentCheck("bad", ill(state), needed=needed)]
        )
        == code
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "good               works: yes"
    assert lines[1] == f"bad                {state} because it is so | do this: that"
    assert lines[-1] == ("make reproduce needs bad" if code else "all that make reproduce needs works")


def test_components_that_a_laptop_needs() -> None:
    needed = {check.name for check in checks.CHECKS if check.needed}
    assert needed == {"Python", "machine", "packages", "torch", "gloo", "mpi4py", "mpiexec", "disk", "reports"}


# -- programs -------------------------------------------------------------------------------------------------------


def test_hanging_program_is_ended_with_its_children() -> None:
    child = "import time; time.sleep(600)"
    code = f"import subprocess, sys; print('here', flush=True); subprocess.run([sys.executable, '-c', {child!r}])"
    begin = time.monotonic()
    output = attempt([sys.executable, "-c", code], 2)
    assert time.monotonic() - begin < 8
    assert (output.late, output.text) == (True, "here\n")
    assert "was not done after 2 s" in output.reason
    assert not [p for p in psutil.process_iter(["cmdline"]) if child in (p.info["cmdline"] or [])]


def test_failed_program_reports_its_reason() -> None:
    assert attempt([sys.executable, "-c", "print(1)"]) == ProbeOutput("1\n")
    assert (
        "ended with 3: the last" in attempt([sys.executable, "-c", "import sys; print('the last'); sys.exit(3)"]).reason
    )
    assert "ended with 1: ValueError: x" in attempt([sys.executable, "-c", "raise ValueError('x')"]).reason
    assert "No such file" in attempt(["/no/such/program"]).reason


def test_facts_are_read_between_other_output() -> None:
    text = '[INFO] {"torch": broken\n{"torch": "1"}\n7\n{"gloo": true}\n'
    assert ProbeOutput(text).facts == {"torch": "1", "gloo": True}


def test_concurrent_checks_share_one_probe() -> None:
    calls = []

    def look() -> ProbeOutput:
        calls.append(1)
        time.sleep(0.2)
        return ProbeOutput("found")

    shared = probe.RunOnce(look)
    with ThreadPoolExecutor(max_workers=5) as pool:
        assert list(pool.map(lambda _: shared(), range(5))) == [ProbeOutput("found")] * 5
    assert len(calls) == 1


def test_mpi_probe_detects_kernel_copies(monkeypatch: Patch) -> None:
    """Without kernel-assisted copies a large message waits for its sender's next call."""
    needs("mpiexec")
    monkeypatch.setattr(probe, "PATIENCE", 60.0)
    monkeypatch.setenv("OMPI_MCA_smsc", "^cma,xpmem,knem")
    facts = probe.mpi_ranks().facts
    assert facts["size"] == 2
    if "Open MPI" in facts["library"]:
        assert facts["moved"] is False
        assert BY_NAME["kernel copies"].finding().state == ABSENT
    assert BY_NAME["mpiexec"].finding().state == WORKS


def test_gloo_failure_differs_from_missing_torch(monkeypatch: Patch) -> None:
    monkeypatch.setattr(probe, "PATIENCE", 60.0)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    assert BY_NAME["torch"].finding().state == WORKS
    finding = BY_NAME["gloo"].finding()
    assert finding.state == BROKEN
    assert "two ranks do not add" in finding.line()


def test_doctor_prints_a_line_per_component_without_traceback() -> None:
    line = [sys.executable, "-m", "suite", "doctor"]
    env = {**os.environ, "PATH": "/nowhere", "HOME": "/nowhere", "TORCH_EXTENSIONS_DIR": "/nowhere"}
    begin = time.monotonic()
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert time.monotonic() - begin < 30  # 20 on an idle machine
    lines = done.stdout.splitlines()
    assert len(lines) == len(checks.CHECKS) + 3, done.stdout + done.stderr  # what was measured, and the sum
    for text, check in zip(lines, checks.CHECKS, strict=False):
        assert text.startswith(check.name)
        assert any(f" {state}" in text for state in (WORKS, ABSENT, BROKEN, UNKNOWN)), text
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == lines[-1].startswith("make reproduce needs")
    assert "Slurm              not here because there is no sinfo and no sbatch" in done.stdout


# -- locks ----------------------------------------------------------------------------------------------------------


def test_build_lock_without_an_open_file_is_stale(tmp_path: Path, monkeypatch: Patch) -> None:
    held_lock, stale, lock_folder = (tmp_path / "py311_cpu" / name for name in ("held", "stale op", "folder"))
    for folder in (held_lock, stale, lock_folder / "lock"):
        folder.mkdir(parents=True)
    (stale / "lock").touch()
    (stale / "other").touch()
    # as torch's FileBaton takes it
    code = "import os, sys, time; os.open(sys.argv[1], os.O_CREAT | os.O_EXCL); print(1, flush=True); time.sleep(600)"
    builder = subprocess.Popen([sys.executable, "-c", code, str(held_lock / "lock")], stdout=subprocess.PIPE)
    try:
        assert builder.stdout is not None
        builder.stdout.readline()
        assert stale_locks([tmp_path]) == [stale / "lock"]
    finally:
        builder.kill()
        builder.wait()
    assert stale_locks([tmp_path]) == [held_lock / "lock", stale / "lock"], "its builder was killed"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    line = BY_NAME["build locks"].finding().line()
    assert f"do this: rm {held_lock / 'lock'} '{stale / 'lock'}'" in line
    assert (stale / "lock").exists(), "the doctor removes nothing"
    subprocess.run(line.partition("do this: ")[2], shell=True, check=True)
    assert BY_NAME["build locks"].finding().state == WORKS


def test_build_folders_follow_the_environment(tmp_path: Path) -> None:
    cache = "Library/Caches" if sys.platform == "darwin" else ".cache"
    assert build_folders({"HOME": "/h"}) == [Path("/h") / cache / "torch_extensions"]
    assert build_folders({"HOME": "/h", "XDG_CACHE_HOME": "/x"}) == [Path("/x/torch_extensions")]
    folders = build_folders({"HOME": "/h", "TORCH_EXTENSIONS_DIR": str(tmp_path)})
    assert folders == [tmp_path, Path("/h") / cache / "torch_extensions"]


def test_torch_builds_there_too() -> None:
    """Its own answer, in a process that has loaded it."""
    code = "from torch.utils.cpp_extension import get_default_build_root; print(get_default_build_root())"
    env = {**{name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}, "HOME": "/h"}
    said = subprocess.check_output([sys.executable, "-c", code], env=env, text=True, timeout=120)
    assert said.strip() == str(build_folders({"HOME": "/h"})[0])
