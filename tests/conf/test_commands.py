"""Command lines of claims that need a data set or a GPU.

Every command is read word by word; composed and put before the parent's refusals, with tiny folders of the published
layouts, is one of each training and of each system, and all of them where everything is asked for.
"""

from __future__ import annotations

import itertools
import math
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from suite.cli import dataset_info
from suite.config.compose import composed
from suite.config.plugins import build
from suite.config.run import RunConfig
from suite.core.claim import Claim, Judged, Verdict
from suite.data import images, sentiment, translation
from suite.papers.common import claims, reproduce_commands
from suite.runner import labels
from suite.runner.runs import freeze

EXPERIMENT = ["suite", "sweep", "experiment=pipeoptim_published"]
COUNT = ["suite", "dataset-info"]


@cache
def rows() -> dict[str, Claim]:
    return {claim.id: claim for claim in claims.load() if claim.paper == "pipeoptim"}


@cache
def command_of() -> dict[str, str]:
    return reproduce_commands.commands(claims.load(), claims.settings())


@cache
def published() -> reproduce_commands.Published:
    return reproduce_commands.Published.of(claims.load(), claims.settings())


def command(name: str) -> str:
    return command_of()[f"pipeoptim.{name}"]


@cache
def parts() -> tuple[tuple[str, ...], ...]:
    """The words of every different command."""
    lines = [line for one in command_of().values() for line in one.split(" && ")]
    return tuple(dict.fromkeys(tuple(shlex.split(line)) for line in lines))


def swept(words: tuple[str, ...]) -> list[list[str]]:
    """The first and the last run of a sweep, and the last system's first."""
    choices = []
    for override in OverridesParser.create().parse_overrides(list(words[2:])):
        key = str(override.key_or_group)
        values = list(override.sweep_string_iterator()) if override.is_sweep_override() else [override.input_line]
        choices.append([one if "=" in str(one) else f"{key}={one}" for one in (values[0], values[-1])])
    return [[pair[0] for pair in choices], [pair[1] for pair in choices]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published layouts, with next to nothing in them."""
    root = tmp_path_factory.mktemp("data")
    for layouts in (images.LAYOUTS, sentiment.LAYOUTS, translation.LAYOUTS):
        for name, inside in layouts.items():
            for path in (root / name / part for part in inside):
                if path.suffix:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text("text\n" * 50)
                else:
                    path.mkdir(parents=True, exist_ok=True)
                    (path / "0_1.txt").write_text("a review")
    return root


def accepted(overrides: list[str], folder: Path) -> RunConfig:
    """The config of one run, which no parent refuses."""
    here = [word.replace("FOLDER", str(folder)) for word in overrides]
    run = freeze(composed(here), "")
    assert run.refusal is None, (overrides, run.refusal)
    return run.config


def test_claims_that_need_data_or_a_gpu_have_commands() -> None:
    wanting = {name for name, claim in rows().items() if claim.reach in ("data", "gpu")}
    assert command_of().keys() == wanting
    assert len([name for name in wanting if rows()[name].reach == "data"]) == 110
    for words in parts():
        assert list(words[:3]) == EXPERIMENT or (list(words[:2]) == COUNT and words[2] in dataset_info.sources())


def test_settings_of_a_claim_are_in_its_command() -> None:
    for name, claim in rows().items():
        if name not in command_of():
            continue
        line, setting = command_of()[name], claim.setting
        if "epochs" in setting:
            assert f"measure.rounds={setting['epochs']} " in line
            assert f"batch.size={setting['batch_size']} " in line
        if "dataset" in setting:
            assert f"FOLDER/{reproduce_commands.NAMES[str(setting['dataset'])]}" in line
        if claim.system in reproduce_commands.SYSTEMS:
            system = "naive" if claim.system == "gpipe" and claim.reach == "data" else claim.system
            systems = [word.removeprefix("system=") for word in shlex.split(line) if word.startswith("system=")]
            assert system in ",".join(systems).split(",")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("table4.sgdm.alexnet.gpipe", ["system=naive", "model=alexnet", "batch.size=56", "milestones:[71440,107160]"]),
        ("table4.sgdm.alexnet.pipedream_2bw", ["milestones:[17880,26820]", "measure.batches=1786"]),  # 447 an epoch
        ("table4.adamw.googlenet.pipeoptim", ["googlenet_cifar", "lr:0.001,milestones:[35190]", "measure.rounds=120"]),
        ("table4.adam.residual_lstm.pipedream", ["optimizer=adam ", "Polynomial,lr:0.001,total:4900"]),
        ("table4.adamw.residual_lstm.pipedream", ["optimizer=adamw ", "Polynomial,lr:0.001,total:4900"]),
        ("table4.adam.gnmt_8.pipeoptim", ["model=gnmt_8", "data=wmt16", "optimizer.lr=0.0003", "measure.rounds=8"]),
        ("table6.resnet_101.spectrain.max_top1", ["batch.size=90", "measure.batches=1112", "measure.eval_batches=111"]),
        ("table6.inception_v3.pipedream.total_time", ["batch.size=86", "measure.batches=1163"]),
        ("table5.gnmt_16.gpipe", ["model=gnmt_16", "batch.size=range(64,1024,8)", "${per_replica:${batch.size},4}"]),
        ("sec5a.tiny_imagenet_classes", ["suite dataset-info tiny_imagenet FOLDER/tiny_imagenet"]),
    ],
)
def test_commands_of_selected_claims(name: str, words: list[str]) -> None:
    for word in words:
        assert word in command(name)
    assert " && " not in command(name)


def test_claim_about_several_systems_names_them_all() -> None:
    best = command("sec5b.alexnet_best").split(" && ")
    assert [line.split()[3] for line in best] == ["system=naive,pipedream,spectrain,pipeoptim", "system=pipedream_2bw"]
    trained = [shlex.split(line)[4] for line in command("sec5b.adamw_best").split(" && ")]
    assert trained == ["model=vgg_16_cifar"] * 2 + ["model=googlenet_cifar"] * 2 + ["model=residual_lstm"] * 2
    assert "spectrain" not in command("sec5b.adamw_best")
    assert {word for word in command("sec5d.best_top1_top5").split() if word.startswith("model=")} == {
        *("model=resnet_101", "model=inception_v3")
    }
    everything = command("sec5b.comparable_to_gpipe").split(" && ")
    assert len(everything) == 8
    assert all("system=naive,pipeoptim " in line for line in everything)


def test_renamed_claim_keeps_its_command() -> None:
    """An id names a claim and says nothing about it."""
    new = {claim.id: f"renamed.{number}" for number, claim in enumerate(claims.load())}

    def renamed(argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [renamed(each) for each in argument]
        return new.get(argument, argument) if isinstance(argument, str) else argument

    rows = [
        replace(
            claim,
            id=new[claim.id],
            answers=tuple(
                replace(row, arguments={key: renamed(each) for key, each in row.arguments.items()})
                for row in claim.answers
            ),
        )
        for claim in claims.load()
    ]
    commands = reproduce_commands.commands(rows, claims.settings())
    assert commands == {new[name]: line for name, line in command_of().items()}


def test_section_alone_selects_no_command() -> None:
    """The place in the text decides nothing: a claim made of cells of Table VI trains with the largest batches."""
    claim = rows()["pipeoptim.sec5d.speedup.resnet_101.pipedream"]
    assert reproduce_commands.command(replace(claim, where="elsewhere"), published()) == command_of()[claim.id]
    assert "batch.size=86 " in command_of()[claim.id]


def one_of_each() -> list[list[str]]:
    """Runs that cover every training, every system and every kind of sweep."""
    chosen: list[list[str]] = []
    seen: set[str] = set()
    for words in sorted(parts()):
        for run in swept(words) if list(words[:3]) == EXPERIMENT else ():
            kinds = {word for word in run if word.partition("=")[0] in ("system", "model")}
            if not kinds <= seen:
                seen |= kinds
                chosen.append(run)
    return chosen


def test_commands_are_accepted_by_validation(folder: Path) -> None:
    runs = one_of_each()
    assert {word for run in runs for word in run if word.startswith("system=")} == {
        f"system={name}" for name in ("naive", "gpipe", "pipedream", "pipedream_2bw", "spectrain", "pipeoptim")
    }
    for run in runs:
        config = accepted(run, folder)
        assert config.launch.device == "cuda"
        assert config.grid.plain() == {"data": 1, "inter": 4, "tensor": 1}
        assert config.measure.validate_when == "every_round"


@pytest.mark.exhaustive
def test_all_commands_are_accepted_by_validation(folder: Path) -> None:
    for words in parts():
        for run in swept(words) if list(words[:3]) == EXPERIMENT else ():
            accepted(run, folder)


def test_the_rate_falls_where_the_paper_says(folder: Path) -> None:
    """In epochs, whatever a system's updates are."""
    for system, updates in (("pipedream", 1786), ("pipedream_2bw", math.ceil(1786 / 4))):
        words = tuple(shlex.split(command(f"table4.sgdm.resnet_101.{system}")))
        rate = build(accepted(swept(words)[0], folder).optimizer.arguments["lr"])
        rates = [rate(epoch * updates) for epoch in (0, 39, 40, 59, 60, 69)]
        assert rates == pytest.approx([0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001])


def test_claim_without_a_run_shows_its_command() -> None:
    [cpu] = itertools.islice((claim for claim in rows().values() if claim.reach == "cpu"), 1)
    data = rows()["pipeoptim.table4.sgdm.alexnet.gpipe"]
    none = Judged(data, Verdict.NOT_RUN, "no record")
    ran = replace(none, record="records/a.json")  # which the record says, or nothing does
    judged = reproduce_commands.with_commands([none, ran, replace(none, claim=cpu)], claims.settings())
    assert [judgement.command for judgement in judged] == [command("table4.sgdm.alexnet.gpipe"), "", ""]


def test_spectrain_trains_with_momentum_alone() -> None:
    """A claim that names no system is about all of them; what SpecTrain refuses stands in no command."""
    all_ways = replace(rows()["pipeoptim.sec5b.comparable_to_gpipe"], system="", versus=None, terms=())
    lines = reproduce_commands.command(all_ways, published()).split(" && ")
    with_it = [line for line in lines if "spectrain" in line]
    assert len(with_it) == 3
    assert all("optimizer=sgd " in line for line in with_it)


def test_a_claim_about_a_data_set_trains_on_no_other() -> None:
    on_reviews = replace(rows()["pipeoptim.sec5b.comparable_to_gpipe"], setting={"dataset": "imdb"})
    lines = reproduce_commands.command(on_reviews, published()).split(" && ")
    assert [word for line in lines for word in line.split() if word.startswith("data=")] == ["data=imdb"] * 2


def test_no_two_networks_share_a_label() -> None:
    """A page finds a run by its label, and a newer record of a label stands in the place of an older one."""
    networks: dict[str, set[tuple[str, ...]]] = {}
    for words in parts():
        for run in swept(words) if list(words[:3]) == EXPERIMENT else ():
            chosen = dict(word.split("=", 1) for word in run)
            label = f"{chosen['system']} 4x1{labels.suffix(run, chosen['system'], None)}"
            networks.setdefault(label, set()).add((chosen["model"], chosen["data"], chosen["optimizer"]))
    assert len(networks) > 50
    assert [label for label, labelled in networks.items() if len(labelled) > 1] == []
    assert {model for labelled in networks.values() for model, _, _ in labelled} >= {"alexnet", "resnet_101", "gnmt_8"}
