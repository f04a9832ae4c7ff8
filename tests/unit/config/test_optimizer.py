"""The group optimizer holds an update rule with its arguments, and the pieces in which it steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.config.compose import groups, resolve
from suite.config.optimizer import OWN_KEYS
from suite.runner.runs import expand

RULE = """
class Clipped:
    def __init__(self, lr: float, clip_norm: float = 1.0) -> None:
        self.lr = lr
"""


@pytest.mark.parametrize("choice", groups()["optimizer"])
def test_bucket_keys_are_no_arguments_of_update_rules(choice: str) -> None:
    config = resolve([f"optimizer={choice}", "optimizer.bucket_numel=7", "optimizer.clip_norm=0.5"])
    optimizer = config.optimizer
    assert (optimizer.bucket_numel, optimizer.buckets_per_reduction, optimizer.clip_norm) == (7, 4, 0.5)
    assert not {*OWN_KEYS} & {*optimizer.rule.data()}
    assert optimizer.rule.target == optimizer.target


def test_rule_with_an_argument_of_such_a_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "clipped_rule.py").write_text(RULE)
    overrides = [f"launch.python_path=[{tmp_path}]", "optimizer._target_=clipped_rule.Clipped"]
    (run,) = expand(overrides)
    assert run.refusal is not None
    assert str(run.refusal).startswith("optimizer._target_=clipped_rule.Clipped with an argument clip_norm; rule: ")
    assert str(run.refusal).endswith("legal: an argument clip_norm_of_mine")
