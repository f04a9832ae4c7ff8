"""Files from anybody: each reader refuses a damaged one by name, runs nothing, and stays inside its folder.

Records: tests/unit/report/test_load.py; graphs: tests/unit/data/graphs; archives: tests/unit/artifact; class paths:
tests/unit/config/test_locate.py.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suite.config.compose import resolve
from suite.core.errors import InvalidRequest, SuiteError
from suite.engine.checkpoint import storage
from suite.engine.engine import Engine
from suite.engine.optim.optimizer import SGD
from suite.gnn.plan import ExchangePlan
from suite.gnn.rank_shard import RankShard
from suite.pruning.mask import load as load_ticket
from suite.runner.runs import expand
from suite.simulate.cost.measured import recorded
from suite.simulate.network.machine import measured
from suite.workload.pipedream_split import Profile
from tests.support.cases import gpt_case
from tests.support.refusals import refused


class Runs:
    """An unpickled object leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


READERS: dict[str, Callable[[Path], object]] = {
    "ticket": load_ticket,
    "plan": ExchangePlan.load,
    "holding": RankShard.load,
    "profile": Profile.read,
    "trace": lambda path: recorded(trace=str(path)),
    "machine": lambda path: measured(name="local", file=str(path)),
    "overrides": lambda path: expand([f"@{path}"]),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("content", ["pickle", "npz of objects", "python yaml", "empty"])
def test_each_reader_refuses_by_name_and_runs_nothing(reader: str, content: str, tmp_path: Path) -> None:
    path, mark = tmp_path / "given", tmp_path / "it ran"
    if content == "pickle":
        path.write_bytes(pickle.dumps(Runs(mark)))
    elif content == "npz of objects":
        with path.open("wb") as file:
            np.savez(file, parts=np.array([Runs(mark)], dtype=object), format=np.array([Runs(mark)], dtype=object))
    elif content == "python yaml":
        path.write_text(f"!!python/object/apply:os.system ['touch {mark}']")
    else:
        path.write_bytes(b"")
    with pytest.raises(SuiteError):
        READERS[reader](path)
    assert not mark.exists()


def test_yaml_of_the_user_is_read_as_data(tmp_path: Path) -> None:
    """Also where the folder was chosen: its modules may run, its YAMLs have nothing to run."""
    mark = tmp_path / "it ran"
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "evil.yaml").write_text(f"system: !!python/object/apply:os.system ['touch {mark}']\n")
    with pytest.raises(Exception, match="could not determine a constructor"):
        resolve([f"launch.python_path=['{tmp_path}']", "system=evil"])
    assert not mark.exists()


# -- checkpoints -----------------------------------------------------------------------------------------------------


def engine() -> Engine:
    case = gpt_case("untied", "float32", tied=False, layers=1)
    return Engine(case.layers, loss=case.loss, optimizer=SGD(0.1), microbatch=case.microbatch)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return engine().save(tmp_path / "checkpoints")


def signed(step: Path, body: Any) -> None:
    """A manifest that has its own digest, whatever it says."""
    digest = storage.digest(json.dumps(body, sort_keys=True).encode())
    (step / storage.MANIFEST).write_text(json.dumps({"sha256": digest, "body": body}))


def test_checkpoint_file_outside_its_folder_is_damage(saved: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    layer = next(saved.glob("layer-*"))
    layer.rename(outside)
    layer.symlink_to(outside)
    with refused(
        InvalidRequest,
        subject="layer-00001.safetensors is a link",
        rule="a folder with at least one complete checkpoint",
    ):
        engine().load(saved.parent)
    layer.unlink()
    os.mkfifo(layer)
    with refused(InvalidRequest, subject="not a regular file", rule="every file has the SHA-256 of the manifest"):
        engine().load(saved)
    layer.unlink()
    layer.write_bytes(outside.read_bytes() + b"more")
    with refused(
        InvalidRequest, subject="bytes, 27640 were written", rule="every file has the SHA-256 of the manifest"
    ):
        engine().load(saved)


def test_linked_checkpoint_is_ignored(saved: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    saved.rename(elsewhere)
    saved.symlink_to(elsewhere)
    with refused(InvalidRequest, subject="no checkpoint in", rule="a folder with at least one complete checkpoint"):
        engine().load(saved.parent)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: {},
        lambda body: {**body, "files": {}},
        lambda body: {**body, "files": dict.fromkeys(body["files"], "../../etc/passwd")},
        lambda body: {**body, "files": {name: {"bytes": 1, "sha256": 3} for name in body["files"]}},
        lambda body: {**body, "layers": []},
        lambda body: {**body, "replicas": "many", "split": None},
        lambda body: {**body, "microbatches": None},
        lambda body: {**body, "extra": {}},
    ],
)
def test_manifest_of_another_form_is_refused(spoil: Callable[[dict[str, Any]], Any], saved: Path) -> None:
    signed(saved, spoil(storage.manifest(saved)))
    other = engine()
    before = [parameter.detach().clone() for parameter in other.state.model_states.parameters]
    with pytest.raises(SuiteError):
        other.load(saved.parent)
    assert all(bool((a == b).all()) for a, b in zip(before, other.state.model_states.parameters, strict=True))


def test_manifest_without_a_mapping_is_damage(saved: Path) -> None:
    for text in ("[]", '{"body": 3, "sha256": 4}', '{"body": [], "sha256": ""}'):
        (saved / storage.MANIFEST).write_text(text)
        with pytest.raises(storage.Damaged):
            storage.manifest(saved)


@pytest.mark.parametrize(
    "line",
    [
        "launch.mpiexec=/bin/evil",
        "+launch.python_path=[somewhere]",
        "launch.setup=['rm -r .']",
        "launch.extra={wrap: evil}",
        "++launch={mpiexec: evil}",
        "hydra/launcher=joblib",
        "hydra.searchpath=[somewhere]",
    ],
)
def test_override_file_cannot_select_a_program(line: str, tmp_path: Path) -> None:
    file = tmp_path / "asked.yaml"
    file.write_text(json.dumps(["seed=1", line]))
    with refused(InvalidRequest, rule="only the command line selects programs and code"):
        expand([f"@{file}"])
    file.write_text(json.dumps(["launch.threads=1", "launch=local", "seed=2"]))
    assert expand([f"@{file}"])[0].config.seed == 2
