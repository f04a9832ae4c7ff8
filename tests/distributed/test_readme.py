"""The README's example runs as it stands: on one rank with a grid of one, and under mpiexec on two."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from ranks import ROOT, run_ranks

README = (ROOT / "README.md").read_text()


def example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    return code


def test_the_example_is_about_five_lines() -> None:
    lines = [line for line in example().splitlines() if line and not line.startswith(("import", "from", "batches"))]
    assert len(lines) <= 5


def test_two_ranks(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import torch\ntorch.manual_seed(0)\n" + example())
    losses = sorted(float(line) for line in run_ranks(2, program).split())
    assert len(losses) == 6
    assert losses[0::2] == losses[1::2], "both ranks are told the same losses"


def test_one_process(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(example().replace("Grid(inter=2)", "Grid()"))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=env, check=False)
    assert len(done.stdout.split()) == 3, done.stderr


def test_the_drawing_is_what_the_command_prints() -> None:
    from suite.draw import draw

    (command,) = re.findall(r"python -m suite.draw (.*)", README)
    printed = "\n".join("    " + line for line in draw(command.split()).splitlines())
    assert printed in README
