"""Import rules of the packages, checked on every module and in fresh interpreters.

These rules allow a report to be rebuilt without torch, a schedule to be checked without MPI, and any two axes of a
system to be combined. A single import could break that without notice.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
STDLIB_ONLY = ("core", "schedule", "weights", "memory", "workload")
TORCH = re.compile(
    r"suite/(comm|conformance|microbench|models|pruning|engine)/|suite/gnn/(exchange|train)\.py$|baselines/"
    r"|suite/papers/\w+/probes(_\w+)?\.py$"
)
MACHINE_ROOMS = ("core", "comm", "engine", "memory", "gnn", "simulate")
MPI = re.compile(r"suite/comm/p2p/mpi\.py$")
HYDRA = re.compile(r"suite/config/compose\.py$|suite/cli/")
PYDANTIC = re.compile(r"suite/config/")
PRINTS = re.compile(r"suite/cli/")  # commands print for people
BASELINE_AT_TOP = {"torch"}
KERNELS = (
    "baselines/sputnik/cuda.py"  # a Triton kernel needs its names at the top of its module, which is imported late
)


class Import(NamedTuple):
    """Import of `name` in the file `path` on `line`. `top` is true outside functions."""

    path: str
    line: int
    name: str
    top: bool

    @property
    def root(self) -> str:
        return self.name.partition(".")[0]

    def inside(self, *packages: str) -> bool:
        return any(self.name == package or self.name.startswith(f"{package}.") for package in packages)

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.name}"


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def read(path: Path) -> list[Import]:
    """Imports of a module. `from a import b` counts as a.b, because b may be a module."""
    relative = path.relative_to(ROOT)
    package = relative.parts[:-1]
    imports = []

    def visit(node: ast.AST, top: bool) -> None:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join((*package[: len(package) - node.level + 1], *filter(None, [node.module])))
            base = base if node.level else str(node.module)
            names = [f"{base}.{alias.name}" for alias in node.names]
        imports.extend(Import(relative.as_posix(), node.lineno, name, top) for name in names)  # type: ignore[attr-defined]
        inner = top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(ast.parse(path.read_text(encoding="utf-8")), top=True)
    return imports


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return [entry for path in modules("suite", "baselines") for entry in read(path)]


def within(imports: list[Import], *folders: str) -> Iterator[Import]:
    return (i for i in imports if i.path.startswith(tuple(f"{folder}/" for folder in folders)))


def assert_none(violations: Iterator[Import] | list[Import]) -> None:
    assert not [str(violation) for violation in violations]


def test_reader_finds_every_form_of_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "suite" / "engine" / "x.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import os, torch.nn as nn\nfrom suite.core import op\nfrom . import stage\nfrom ..simulate.kernel import run\n"
        "if True:\n    import numpy\nclass C:\n    import scipy\n    def f(self):\n        from mpi4py import MPI\n"
    )
    assert [(entry.name, entry.top) for entry in read(path)] == [
        ("os", True),
        ("torch.nn", True),
        ("suite.core.op", True),
        ("suite.engine.stage", True),
        ("suite.simulate.kernel.run", True),
        ("numpy", True),
        ("scipy", True),
        ("mpi4py.MPI", False),
    ]


def test_modules_of_suite_and_baselines_are_found() -> None:
    assert {"suite/core/op.py", "baselines/gpipe.py"} <= {
        path.relative_to(ROOT).as_posix() for path in modules("suite", "baselines")
    }


@pytest.mark.parametrize("part", STDLIB_ONLY)
def test_pure_packages_import_core_and_the_standard_library(imports: list[Import], part: str) -> None:
    allowed = ("suite.core", f"suite.{part}")
    assert_none(
        i for i in within(imports, f"suite/{part}") if not (i.root in sys.stdlib_module_names or i.inside(*allowed))
    )


def test_engine_and_simulate_do_not_import_each_other(imports: list[Import]) -> None:
    assert_none(i for i in within(imports, "suite/engine") if i.inside("suite.simulate"))
    assert_none(i for i in within(imports, "suite/simulate") if i.inside("suite.engine"))


@pytest.mark.parametrize(
    ("packages", "allowed"),
    [
        (("torch", "torchvision"), TORCH),
        (("mpi4py",), MPI),
        (("hydra", "omegaconf"), HYDRA),
        (("pydantic", "pydantic_core"), PYDANTIC),
    ],
    ids=["torch", "mpi4py", "hydra", "pydantic"],
)
def test_heavy_packages_are_imported_in_their_packages_only(
    imports: list[Import], packages: tuple[str, ...], allowed: re.Pattern[str]
) -> None:
    assert_none(i for i in imports if i.root in packages and not allowed.match(i.path))


def test_suite_never_imports_baselines(imports: list[Import]) -> None:
    assert_none(i for i in within(imports, "suite") if i.root == "baselines")


def test_report_imports_only_core_stats_and_claims(imports: list[Import]) -> None:
    rows = "suite.papers.common.claims", "suite.papers.common.reproduce_commands", "suite.papers.public.league_file"
    allowed = ("suite.core", *rows, "suite.stats", "suite.report")
    assert_none(i for i in within(imports, "suite/report") if i.root == "suite" and not i.inside(*allowed))
    readers = [f"{name.replace('.', '/')}.py" for name in rows]
    assert_none(i for i in imports if i.path in readers and i.root == "suite" and not i.inside("suite.core"))
    stats = ("suite.core", "suite.stats")
    assert_none(i for i in within(imports, "suite/stats") if i.root == "suite" and not i.inside(*stats))


def test_formulas_import_pure_packages_only(imports: list[Import]) -> None:
    """Formulas need no executor, no configuration and no machine model."""
    counting = ("axonn.formulas", "samo.formulas", "common.model_states")
    pure = (*counting, "axonn.closed_forms", "samo.closed_forms", "common.closed_forms", "common.finite_difference")
    papers = (f"suite.papers.{name}" for name in (*pure, "common.answer", "common.plans"))
    allowed = (*(f"suite.{part}" for part in STDLIB_ONLY), *papers)
    files = {name: f"suite/papers/{name.replace('.', '/')}.py" for name in pure}
    formulas = [i for i in imports if i.path in files.values()]
    assert_none(i for i in formulas if i.root not in sys.stdlib_module_names and not i.inside(*allowed))
    assert {i.path for i in formulas if i.inside("suite.memory")} >= {files[name] for name in counting}


def test_machine_packages_do_not_import_papers(imports: list[Import]) -> None:
    """Code that a claim measures must not depend on the claim."""
    rooms = [f"suite/{room}" for room in MACHINE_ROOMS]
    assert_none(i for i in within(imports, *rooms) if i.inside("suite.papers"))


def test_baselines_import_third_parties_when_called(imports: list[Import]) -> None:
    allowed = sys.stdlib_module_names | {"suite", "baselines"} | BASELINE_AT_TOP
    assert_none(
        i
        for i in within(imports, "baselines")
        if i.top and i.root not in allowed and (i.path, i.root) != (KERNELS, "triton")
    )
    assert_none(i for i in imports if i.top and i.inside("baselines.sputnik.cuda"))
    assert_none(i for i in imports if i.path == "baselines/gpipe.py" and i.top and i.root == "torch")


# Packages that an import loads in a fresh interpreter


def loaded(*names: str) -> set[str]:
    """Packages in a fresh interpreter after it has imported `names`."""
    code = (
        f"import sys\nfor name in {list(names)!r}: __import__(name)\nprint(*{{m.split('.')[0] for m in sys.modules}})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_command_line_loads_the_standard_library_only() -> None:
    assert loaded("suite.cli") - loaded("sys") <= {*sys.stdlib_module_names, "suite"}


@pytest.mark.parametrize(
    "name",
    [
        "suite.config.compose",
        "suite.runner.runs",
        "suite.runner.executors.split_passes",
        "suite.papers.common.figure_executor",
        "suite.papers.samo.layer_products",
        "suite.report",
        "suite.simulate",
        "suite.data.text",
        "suite.regression.comparison",
        "suite.regression.nightly.run",
    ],
)
def test_modules_of_the_parent_process_load_no_torch(name: str) -> None:
    path = ROOT.joinpath(*name.split("."))
    if not (path.with_suffix(".py").exists() or (path / "__init__.py").exists()):
        pytest.skip(f"{name} is not there yet")
    assert not loaded(name) & {"torch", "mpi4py"}


# Style


def test_every_module_has_a_docstring() -> None:
    undocumented = [p for p in modules("suite", "baselines") if not ast.get_docstring(ast.parse(p.read_text("utf-8")))]
    assert not [path.relative_to(ROOT).as_posix() for path in undocumented]


def test_libraries_do_not_print() -> None:
    printing = [
        f"{name}:{node.lineno}"
        for path in modules("suite", "baselines")
        if not PRINTS.match(name := path.relative_to(ROOT).as_posix())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not printing


def tracked() -> list[Path]:
    """Files tracked by git; every file outside hidden and generated folders where there is no repository."""
    if shutil.which("git") and (ROOT / ".git").exists():
        done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
        return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    generated = ("__pycache__", "build", "outputs", "multirun")
    return [
        path
        for path in ROOT.rglob("*")
        if path.is_file() and not any(p.startswith(".") or p in generated for p in path.relative_to(ROOT).parts)
    ]


def test_no_file_holds_paths_of_the_development_machine() -> None:
    # assembled from parts, so that this file does not match
    slash = "/"
    words = [slash + "work" + slash, slash.join(("", "tmp", "w")), ".".join(("pypi", "org")), "files." + "pythonhosted"]
    pattern = re.compile("|".join(rf"(?<![\w.]){re.escape(word)}" for word in words).encode())
    matches = {path.relative_to(ROOT).as_posix(): pattern.search(path.read_bytes()) for path in tracked()}
    assert {name: match[0] for name, match in matches.items() if match} == {}
