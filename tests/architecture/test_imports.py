"""Import rules of the packages, checked on every module and in a fresh interpreter, and rules of style.

These rules allow a report to be rebuilt without torch, a schedule to be checked without MPI, and any two axes of a
system to be combined. A single import could break that without notice.
"""

from __future__ import annotations

import ast
import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from suite.whatif.site import modules
from tests.architecture.trees import ROOT, sources, trees
from tests.support.scripts import printed

ROWS = r"claims|simulate\.validation\.tables"
POINTS = r"whatif\.(catalogue|points)"
SIZES = r"suite\.models\.image_shapes"  # torch counts their layers when these are asked for
PURE = r"suite\.(core|schedule|weights|memory|workload)"
LIGHT = r"(claims/(claim|blind|load)|simulate/validation/tables)"
FORMULA = r"(formulas|closed_forms|model_states|finite_difference)"
FORMULAS = r"suite/papers/((axonn|samo)/(formulas|closed_forms)|closed_forms|model_states|finite_difference)\.py$"
TORCH = (
    r"suite/accelerator\.py$|suite/(comm|conformance|doctor|microbench|models|pruning|engine)/|suite/gnn/(exchange|memory|train)\.py$|baselines/"
    r"|suite/papers/(\w+/)?measured(_\w+)?\.py$"
)
FORBIDDEN = (  # files, and names that they do not import
    (r"suite/engine/", r"suite\.simulate"),
    (r"suite/simulate/", r"suite\.engine"),
    (r"suite/", r"baselines"),
    # what a claim measures depends on no claim
    (r"suite/(core|comm|engine|memory|gnn|simulate(?!/validation))/", r"suite\.(papers|claims)"),
    (rf"(?!{TORCH})", r"torch|torchvision"),
    (r"(?!suite/comm/p2p/mpi\.py$)", r"mpi4py"),
    (r"(?!suite/config/compose\.py$)", r"hydra|omegaconf"),
    (r"(?!suite/(config|claims)/)", r"pydantic|pydantic_core"),
    (
        r"suite/report/",
        rf"suite\.(?!(core|stats|report|config\.(experiment|panels)|{POINTS}|{ROWS})(\.|$)).*",
    ),
    (r"suite/stats/", r"suite\.(?!(core|stats)(\.|$)).*"),
    (r"suite/(papers|simulate(?!/validation))/", r"suite\.(report|cli)"),
    (rf"suite/{LIGHT}\.py$", r"suite\.(?!(core|claims)(\.|$)).*"),
)
ONLY = (  # files, and the names next to the standard library that they import at the top of a module
    (r"suite/core/", r"suite\.core"),
    *((rf"suite/{name}/", rf"suite\.(core|{name})") for name in ("schedule", "weights", "memory", "workload")),
    (FORMULAS, rf"{PURE}|{SIZES}|suite\.claims\.(answer|plans)|suite\.papers\.(\w+\.)?{FORMULA}"),
    (r"baselines/(?!gpipe\.py$|sputnik/cuda\.py$)", r"suite|torch|baselines(?!\.sputnik\.cuda)"),
    (r"baselines/gpipe\.py$", r"suite"),
    (r"baselines/sputnik/cuda\.py$", r"suite|torch|baselines|triton"),  # imported late; a kernel needs its names
)
PARENT = (  # modules that a process without ranks loads
    *("suite.config.compose", "suite.runner.runs", "suite.simulate.worker"),
    *("suite.claims.figure_executor", "suite.papers.samo.layer_products", "suite.report.page.page"),
    *("suite.data.text", "suite.regression.comparison", "suite.regression.nightly.run"),
)


class Import(NamedTuple):
    """Import of `name` in the file `path`. `top` is true outside functions."""

    path: str
    name: str
    top: bool

    def of(self, names: str) -> bool:
        """Whether it imports one of these packages or modules, or something of it."""
        return re.match(rf"({names})(\.|$)", self.name) is not None


def read(path: str, tree: ast.Module) -> Iterator[Import]:
    """Imports of a module. `from a import b` counts as a.b, because b may be a module."""
    package = path.split("/")[:-1]
    stack: list[tuple[ast.AST, bool]] = [(tree, True)]
    while stack:
        node, top = stack.pop()
        if isinstance(node, ast.Import):
            yield from (Import(path, alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (Import(path, f"{base}.{alias.name}", top) for alias in node.names)
        inner = top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        stack.extend((child, inner) for child in ast.iter_child_nodes(node))


@cache
def imports() -> tuple[Import, ...]:
    return tuple(each for path, tree in trees().items() for each in read(path, tree))


def test_reader_finds_every_form_of_import() -> None:
    text = (
        "import os, torch.nn as nn\nfrom suite.core import op\nfrom . import stage\nfrom ..simulate.kernel import run\n"
        "if True:\n    import numpy\nclass C:\n    import scipy\n    def f(self):\n        from mpi4py import MPI\n"
    )
    found = {(each.name, each.top) for each in read("suite/engine/x.py", ast.parse(text))}
    at_top = {"os", "torch.nn", "suite.core.op", "suite.engine.stage", "suite.simulate.kernel.run", "numpy", "scipy"}
    assert found == {*((name, True) for name in at_top), ("mpi4py.MPI", False)}


def test_packages_import_what_their_rules_allow() -> None:
    for files, names in FORBIDDEN:
        assert any(re.match(files, path) for path in trees()), f"no file {files}"
        assert [each for each in imports() if re.match(files, each.path) and each.of(names)] == [], names
    for files, names in ONLY:
        assert any(re.match(files, path) for path in trees()), f"no file {files}"
        late = files.startswith("baselines/")
        others = [
            each
            for each in imports()
            if re.match(files, each.path) and (each.top or not late)
            if each.name.partition(".")[0] not in sys.stdlib_module_names and not each.of(names)
        ]
        assert others == [], files


def test_imports_have_no_cycle() -> None:
    """Also inside functions, but not for TYPE_CHECKING."""
    names = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in trees()}
    graph = defaultdict(set)
    for module, path in names.items():
        skipped = {
            each.name
            for node in ast.walk(trees()[path])
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for each in read(path, ast.Module(node.body, []))
        }
        for each in read(path, trees()[path]):
            target = each.name if each.name in names else each.name.rpartition(".")[0]
            if each.name not in skipped and target in names:
                graph[module].add(target)
    TopologicalSorter(graph).prepare()


def test_parent_process_loads_no_torch_and_the_command_line_only_the_standard_library() -> None:
    code = f"""import importlib, json, sys
        def new(): return sorted({{name.partition('.')[0] for name in sys.modules}} - set(before))
        before = {{name.partition('.')[0] for name in sys.modules}}
        importlib.import_module('suite.cli.main')
        loaded = {{'suite.cli.main': new()}}
        for name in {PARENT!r}:
            importlib.import_module(name)
            loaded[name] = new()
        from suite.runner.runs import expand
        expand([])
        loaded['a checked run'] = new()
        print(json.dumps(loaded))"""
    program = "\n".join(line.removeprefix(" " * 8) for line in code.splitlines())
    loaded = json.loads(printed("-c", program))
    assert set(loaded["suite.cli.main"]) <= {*sys.stdlib_module_names, "suite"}
    assert "pydantic" in loaded["a checked run"]
    assert {name: packages for name, packages in loaded.items() if {"torch", "mpi4py"} & set(packages)} == {}


def test_a_browser_can_load_the_modules_of_the_what_if_page(tmp_path: Path) -> None:
    """Pyodide has no pydantic, YAML or numpy until a page asks for them, and the zip holds all that the page loads."""
    with zipfile.ZipFile(io.BytesIO(modules())) as archive:
        names = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in archive.namelist()]
        archive.extractall(tmp_path)
    program = f"""import importlib, sys
        sys.path.insert(0, {str(tmp_path)!r})
        sys.modules.update(dict.fromkeys(('numpy', 'pandas', 'pydantic', 'yaml', 'torch')))
        for name in {[name for name in names if not name.endswith("json")]!r}: importlib.import_module(name)
        from suite.simulate.operations.generation import generations
        assert sys.modules['suite'].__file__.startswith({str(tmp_path)!r})
        print(len(generations()))"""
    assert int(printed("-c", "\n".join(line.removeprefix(" " * 8) for line in program.splitlines())))


# Style


def test_class_names_are_unique() -> None:
    homes = defaultdict(list)
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path)
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_modules_are_at_most_500_lines_long() -> None:
    assert [path for path, text in sources().items() if len(text.splitlines()) > 500] == []


def test_modules_have_docstrings_and_libraries_do_not_print() -> None:
    assert [path for path, tree in trees().items() if not ast.get_docstring(tree)] == []
    printing = [
        f"{path}:{node.lineno}"
        for path, tree in trees().items()
        if not path.startswith("suite/cli/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []


def test_refusals_are_compared_by_their_attributes() -> None:
    """Few tests match a pattern, where a refusal has no key."""
    worded = re.compile(r"pytest\.raises\((InvalidRequest|Unsupported|UnknownName|DoesNotFit|kind)\b[^)]*match=")
    files = [path for path in (ROOT / "tests").rglob("*.py") if worded.search(path.read_text(encoding="utf-8"))]
    assert len(files) <= 3, files


def test_no_file_holds_paths_of_the_development_machine() -> None:
    if not (shutil.which("git") and (ROOT / ".git").exists()):
        return
    # assembled from parts, so that this file does not match
    words = ["/" + "work" + "/", "/tmp" + "/w", "pypi" + r"\.org", "files" + r"\.pythonhosted"]
    search = ["git", "grep", "--text", "--files-with-matches", "--perl-regexp", rf"(?<![\w.])({'|'.join(words)})"]
    done = subprocess.run(search, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", ""), "1: no match"
