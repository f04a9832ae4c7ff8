"""Every command of the suite has help, refuses unknown words, and is found here without a list."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from suite.cli import Command
from suite.cli.command import CONF
from suite.config.compose import composed
from suite.core.errors import InvalidRequest, UnknownName
from suite.core.exits import Exit
from suite.nightly import settings

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = {  # started by the suite itself with a file or nothing, never by a person
    "suite.bench.rank",
    "suite.bench.slurm",
    "suite.conformance.started",
    "suite.nightly.reference",
}


def runs_as_main(path: Path) -> bool:
    """Whether the module has `if __name__ == "__main__"`."""
    tests = [node.test for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.If)]
    return path.name == "__main__.py" or any(ast.unparse(test).startswith("__name__ ==") for test in tests)


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__main__" else parts)


FOUND = {dotted(path): path for path in sorted((ROOT / "suite").rglob("*.py")) if runs_as_main(path)}
MODULES = sorted(FOUND.keys() - PROGRAMS)

TRIED = """
import contextlib, io, json, runpy, sys
modules, arguments = json.loads(sys.argv[1])
for module in modules:
    sys.argv = [module, *arguments]
    out, err, status = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            status = ended.code
    print(json.dumps([module, int(status), out.getvalue(), err.getvalue()]))
loaded = sorted({name.split(".")[0] for name in sys.modules} & {"torch", "mpi4py", "hydra", "pandas", "psutil"})
print(json.dumps(loaded))
"""


def tried(folder: Path, *arguments: str) -> tuple[dict[str, tuple[int, str, str]], list[str]]:
    """Status, output and errors of every command with these arguments, run in `folder`; the slow packages loaded."""
    line = [sys.executable, "-c", TRIED, json.dumps([MODULES, arguments])]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    *rows, loaded = map(json.loads, done.stdout.splitlines())
    return {module: (status, out, err) for module, status, out, err in rows}, loaded


def command(module: str) -> Command:
    found = import_module(module if FOUND[module].name != "__main__.py" else f"{module}.__main__").COMMAND
    assert isinstance(found, Command)
    return found


def test_commands_are_found() -> None:
    assert {"suite", "suite.tune", "suite.report"} <= set(MODULES)
    assert FOUND.keys() >= PROGRAMS


def test_help_prints_usage_and_an_example_and_does_nothing(tmp_path: Path) -> None:
    answers, loaded = tried(tmp_path, "--help")
    for module, (status, out, err) in answers.items():
        assert (status, err) == (Exit.OK, ""), module
        assert out.startswith(f"usage: python -m {module} [-h]"), out
        assert f"example:\n  python -m {module}" in out, module
        assert command(module).summary in out
        assert all(f"  {key}=" in out for key in command(module).keys)
    assert not loaded
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("argument", ["--no-such-flag", "nosuchword", "also=this=is=none"])
def test_unknown_arguments_are_refused(tmp_path: Path, argument: str) -> None:
    answers, _ = tried(tmp_path, *(["x", "y"] if "=" in argument else []), argument)
    for module, (status, out, err) in answers.items():
        assert status == Exit.NOTHING, (module, out, err)
        assert err.startswith("refused: "), (module, err)
        assert len(err.splitlines()) == 1, (module, err)
        assert not out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("module", "typed", "legal"),
    [
        ("suite", "--dryrun", "'--dry-run'"),
        ("suite", "axonn", "system=axonn"),
        ("suite.report", "report=x", "'reports'"),
        ("suite.bundle", "--no-docter", "'--no-doctor'"),
        ("suite.nightly", "repeat=3", "'repeats'"),
        ("suite.conformance", "--law=order", "'--laws'"),
        ("suite.doctor", "reports", "'reports='"),
    ],
)
def test_the_nearest_legal_word_is_named(module: str, typed: str, legal: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        command(module).read([typed])
    assert str(caught.value).rpartition("legal: ")[2].strip("?").endswith(legal)


@pytest.mark.parametrize(
    ("module", "typed"), [("suite", "blah"), ("suite.show", "--blah"), ("suite.show", "--blah=1"), ("suite", "-x")]
)
def test_an_unlike_word_is_named_and_nothing_is_suggested(module: str, typed: str) -> None:
    with pytest.raises(UnknownName) as caught:
        command(module).read([typed])
    assert repr(typed.partition("=")[0]) in str(caught.value)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("module", MODULES)
def test_a_command_runs_through_its_definition(module: str) -> None:
    found = command(module)
    assert found.module == module
    own = import_module(module if FOUND[module].name != "__main__.py" else f"{module}.__main__")
    assert own.main == found.main
    found.read([word for word in shlex.split(found.example) if not word.startswith("launch.python_path")])


@pytest.mark.parametrize("module", [module for module in MODULES if command(module).config])
def test_the_keys_of_a_help_are_keys_of_the_config(module: str) -> None:
    config = composed([])
    for key in command(module).keys:
        found = config
        for part in key.split("."):
            assert part in found, key
            found = found[part]


def test_the_help_of_the_night_names_all_its_settings() -> None:
    assert command("suite.nightly").keys.keys() == {*settings.Settings.__slots__, "accept", "index"}


def test_overrides_flags_and_values_stand_in_any_order() -> None:
    read = command("suite.conformance").read(["a=1", "--laws", "order", "+b.c=[1,2]", "~d", "@file.yaml", "e@f=g"])
    assert read.words == ("a=1", "+b.c=[1,2]", "~d", "@file.yaml", "e@f=g")
    assert read.options.laws == ["order"]
    read = command("suite.compare").read(["a", "--json", "x=y.json", "b", "reports=z"])
    assert (read.options.a, read.options.b, str(read.options.json)) == ("a", "b", "x=y.json")
    assert str(read.reports) == "z"


def test_a_help_may_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("suite.tune").main(["system=nobody", "--no-such-flag", "-h"]) == Exit.OK
    assert capsys.readouterr().out == command("suite.tune").help()


def test_groups_of_the_help_are_folders_of_the_config() -> None:
    said = command("suite").help()
    for folder in CONF.iterdir():
        if folder.is_dir() and folder.name not in ("cost", "modelled", "machine", "stack"):
            assert f" {folder.name}=" in said.replace("\n", " ")
