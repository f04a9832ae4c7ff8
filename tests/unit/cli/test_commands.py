"""Every command of the suite has help, refuses unknown words, and is found here without a list."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from suite.cli.main import COMMANDS, command, main
from suite.config.compose import composed
from suite.core.errors import InvalidRequest
from suite.core.exit_codes import Exit
from tests.support.waiting import patience

ROOT = Path(__file__).resolve().parents[3]


NAMES = sorted(COMMANDS)

HELP_OF_ALL = """
import contextlib, io, json, sys
from suite.cli.main import main
answers = {}
for name in sys.argv[1:]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([name, "--help"])
    answers[name] = [int(status), out.getvalue(), err.getvalue()]
loaded = sorted({name.split(".")[0] for name in sys.modules} & {"torch", "mpi4py", "hydra", "pandas", "psutil"})
print(json.dumps([answers, loaded]))
"""


def test_first_word_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for word, legal in (("dorctor", "'doctor'?"), ("system=axonn", "suite run system=axonn"), ("-m", "suite run -m")):
        assert main([word]) == Exit.NOTHING
        assert capsys.readouterr().err.strip().endswith(legal)


def test_help_prints_usage_and_an_example_and_does_nothing(tmp_path: Path) -> None:
    """In a process of its own, which loads no slow package."""
    line = [sys.executable, "-c", HELP_OF_ALL, *NAMES]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, timeout=patience(20), check=True)
    answers, loaded = json.loads(done.stdout)
    for name, (status, out, err) in answers.items():
        assert (status, err) == (Exit.OK, ""), name
        assert out.startswith(f"usage: suite {name} [-h]"), out
        assert f"example:\n  suite {name}" in out, name
        assert command(name).summary in out
        assert all(f"  {key}=" in out for key in command(name).keys)
    assert not loaded
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["--no-such-flag"], ["nosuchword"], ["x", "y", "also=this=is=none"]])
def test_unknown_arguments_are_refused(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        assert main([name, *words]) == Exit.NOTHING, name
        printed = capsys.readouterr()
        assert printed.err.startswith("refused: "), name
        assert (len(printed.err.splitlines()), printed.out) == (1, ""), name
    assert not list(tmp_path.iterdir())


def test_nearest_legal_word_is_suggested_if_there_is_a_similar_one() -> None:
    for name, typed, legal in (
        ("run", "--dryrun", "'--dry-run'"),
        ("run", "axonn", "system=axonn"),
        ("report", "report=x", "'reports'"),
        ("conformance", "--law=order", "'--laws'"),
        ("doctor", "reports", "'reports='"),
        ("run", "blah", ""),
    ):
        with pytest.raises(InvalidRequest) as caught:
            command(name).read([typed])
        assert caught.value.legal.strip("?").endswith(legal), typed
        assert ("did you mean" in str(caught.value)) is (legal.startswith("'")), typed


def test_command_accepts_its_own_example_and_its_keys_exist() -> None:
    config = composed([])
    for name in NAMES:
        words = shlex.split(command(name).example)
        command(name).read([word for word in words if not word.startswith("launch.python_path")])
        for key in command(name).keys if command(name).config else ():
            group = config
            for part in key.split("."):
                assert part in group, (name, key)
                group = group[part]
