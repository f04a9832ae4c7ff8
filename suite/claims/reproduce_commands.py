"""Commands that measure PipeOptim's claims on published data sets or a GPU.

A command is composed from the fields of the claim, the inputs of its answers, and the published settings. No id of a
claim is parsed. FOLDER is a folder with one subfolder per data set. The other papers' claims are measured by their
experiments.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from suite.claims.claim import AnswerRow, Claim, Judged, Scalar, Settings

PAPER, REACHES = "pipeoptim", ("data", "gpu")
SYSTEMS = ("gpipe", "pipedream", "pipedream_2bw", "spectrain", "pipeoptim")
STAGES, SEEDS = 4, "0,1,2,3,4"  # accuracies are means over seeds (P4)
NAMES = {"imdb": "imdb", "cifar_100": "cifar_100", "tiny_imagenet": "tiny_imagenet", "wmt16_en_de": "wmt16"}
NETWORKS = {"vgg_16": "vgg_16_cifar", "googlenet": "googlenet_cifar"}  # variants for small images
RULES = {"sgdm": "sgd"}
PAIRS = 4_500_000  # sentence pairs of WMT16 in the usual preparation; the paper prints eight times as many (P10)
DECAY = {"adamw": 5e-4}  # weight decay of the public code; the paper prints only the SGD weight decay
DECAYS = re.compile(r"divide by 10 at epochs? (\d+)(?: and (\d+))?")
TIMED = ("resnet_101", "inception_v3")  # networks of Section V-D and Table VI
LARGEST, AT_LARGEST = f"{PAPER} Table V", f"{PAPER} Table VI"  # the largest batches; trainings with these batches
MOST_BATCH = 256  # upper end of the search for the largest batch on a GPU of 16 GB


@dataclass(frozen=True, slots=True)
class PublishedTraining:
    """One published training: a network with one optimizer (sgdm, adamw or adam)."""

    network: str
    data: str
    optimizer: str
    batch: int
    epochs: int
    rate: float
    schedule: str
    decay: float
    samples: int
    held_out: int


@dataclass(frozen=True, slots=True)
class Published:
    """Published settings of PipeOptim's training runs.

    Attributes:
        tasks: The trainings.
        largest: Largest batch by network and system (Table V).
        at_largest: Ids of the claims of Table VI, in which every system trains with its largest batch.
    """

    tasks: tuple[PublishedTraining, ...]
    largest: Mapping[tuple[str, str], int]
    at_largest: frozenset[str]

    @classmethod
    def of(cls, claims: Iterable[Claim], settings: Settings) -> Published:
        own_claims = [claim for claim in claims if claim.paper == PAPER]
        largest = {
            (str(claim.setting.get("model")), claim.system): int(claim.value)
            for claim in own_claims
            if claim.quantity == "max_per_gpu_batch" and isinstance(claim.value, float)
        }
        at_largest = frozenset(claim.id for claim in own_claims if AT_LARGEST in claim.displays)
        return cls(tuple(tasks(settings)), largest, at_largest)


def commands(claims: Sequence[Claim], settings: Settings) -> dict[str, str]:
    """Command of each claim that needs data or a GPU, by id."""
    published = Published.of(claims, settings)
    return {claim.id: command(claim, published) for claim in claims if claim.paper == PAPER and claim.reach in REACHES}


def with_commands(judged: Iterable[Judged], settings: Settings) -> list[Judged]:
    """Copies of the judged claims, with a command for each claim without a run."""
    judged_claims = list(judged)
    commands_by_claim = commands([claim.claim for claim in judged_claims], settings)
    return [
        claim if claim.record else replace(claim, command=commands_by_claim.get(claim.claim.id, ""))
        for claim in judged_claims
    ]


def tasks(settings: Settings) -> list[PublishedTraining]:
    """PipeOptim's trainings (Table III), from the settings of its networks, groups and data sets."""
    sizes = {str(row["id"]): _sizes(row) for row in settings["datasets"] if row["id"] in NAMES}
    groups = {(row.get("dataset"), row.get("optimizer")): row for row in settings["training"] if row["paper"] == PAPER}
    adam = next(float(row["learning_rate"]) for row in groups.values() if _of_lstm(row) and "learning_rate" in row)
    trainings = []
    for row in settings["models"]:
        for optimizer in str(row.get("optimizer", "")).split(", ") if row["paper"] == PAPER else ():
            group, data = groups[row["dataset"], optimizer], str(row["dataset"])
            trainings.append(
                PublishedTraining(
                    network=str(row["id"]),
                    data=data,
                    optimizer=optimizer,
                    batch=int(row["batch_size"]),
                    epochs=int(row.get("epochs", group.get("epochs", 1))),
                    rate=float(group.get("learning_rate", adam)),  # not printed for the LSTM with AdamW (P13)
                    schedule=str(group.get("schedule", "polynomial")),
                    decay=float(group.get("weight_decay", DECAY.get(optimizer, 0.0))),
                    samples=sizes[data][0],
                    held_out=sizes[data][1],
                )
            )
    return trainings


def _of_lstm(row: Mapping[str, Scalar]) -> bool:
    return row.get("dataset") == "imdb"


def _sizes(row: Mapping[str, Scalar]) -> tuple[int, int]:
    """Training samples per epoch, and validation samples."""
    if "train_per_class" in row:
        classes, test_images = int(row["classes"]), int(row.get("test_per_class", row.get("validation_per_class", 0)))
        return classes * int(row["train_per_class"]), classes * test_images
    if "train_reviews" in row:
        return int(row["train_reviews"]), int(row["test_reviews"])
    return PAIRS, int(row["validation_pairs_printed"])


def command(claim: Claim, published: Published) -> str:
    """Command line of one claim. Runs that one sweep cannot express are joined by `&&`."""
    if claim.quantity.startswith("dataset_"):
        name = NAMES[str(claim.setting["dataset"])]
        return shlex.join(["suite", "dataset-info", name, f"FOLDER/{name}"])
    systems = systems_of(claim)
    chosen = _of(claim, published)
    if claim.quantity == "max_per_gpu_batch":
        return _joined(_memory(task, systems) for task in chosen)
    if claim.quantity == "prediction_cost":
        return _joined(
            _short(task, systems) for task in chosen if "spectrain" not in systems or task.optimizer == "sgdm"
        )
    at_largest = _at_largest(claim, published)
    if at_largest:
        chosen = [task for task in chosen if task.network in TIMED]
    parts = []
    for task in chosen:
        sizes: dict[tuple[bool, int], list[str]] = {}
        for system in systems:
            if system != "spectrain" or task.optimizer == "sgdm":
                batch = _largest(task, system, published.largest) if at_largest else task.batch
                sizes.setdefault((system == "pipedream_2bw", batch), []).append(system)
        parts += [_training(replace(task, batch=batch), names, two) for (two, batch), names in sizes.items()]
    return _joined(parts)


def _joined(parts: Iterable[str]) -> str:
    return " && ".join(dict.fromkeys(parts))


def systems_of(claim: Claim) -> list[str]:
    """Systems mentioned in a claim, or all systems if it mentions none or "another"."""
    words = " ".join((claim.system or "", claim.versus or "", *claim.terms))
    mentioned = set(re.findall(r"[a-z]\w*", words))
    systems = [name for name in SYSTEMS if name in mentioned]
    return list(SYSTEMS) if not systems or "another" in mentioned else systems


def _at_largest(claim: Claim, published: Published) -> bool:
    """Whether every system trains with its largest batch: the claim, or a cell that it reads, is in Table VI."""
    read = {name for row in claim.answers for name in _texts(row)}
    return AT_LARGEST in claim.displays or not published.at_largest.isdisjoint(read)


def _texts(row: AnswerRow) -> Iterator[str]:
    """Texts among the arguments of an answer, including nested lists."""
    pending: list[object] = list(row.arguments.values())
    while pending:
        argument = pending.pop()
        if isinstance(argument, str):
            yield argument
        elif isinstance(argument, list | tuple):
            pending += argument


def _largest(task: PublishedTraining, system: str, largest: Mapping[tuple[str, str], int]) -> int:
    """Largest batch from Table V. Inception-V3's is not printed; ResNet-101's is used (P13)."""
    return largest.get((task.network, system), largest.get(("resnet_101", system), task.batch))


def _of(claim: Claim, published: Published) -> list[PublishedTraining]:
    """Trainings that match the networks, data set and optimizer in the setting of a claim."""
    settings_of_claim = claim.setting
    names = re.findall(r"\w+", str(settings_of_claim.get("models", settings_of_claim.get("model", ""))))
    if LARGEST in claim.displays and not names:
        names = list(dict.fromkeys(network for network, _ in published.largest))
    return [
        task
        for task in published.tasks
        if (task.network in names if names else task.network != "gnmt_16")
        and settings_of_claim.get("dataset", task.data) == task.data
        and settings_of_claim.get("optimizer", task.optimizer) == task.optimizer
    ]


def _base(task: PublishedTraining, systems: Sequence[str]) -> list[str]:
    data = NAMES[task.data]
    return [
        *("suite", "sweep", "experiment=pipeoptim_published", f"system={','.join(systems)}"),
        *(f"model={NETWORKS.get(task.network, task.network)}", f"data={data}", f"data.folder=FOLDER/{data}"),
        *(f"optimizer={RULES.get(task.optimizer, task.optimizer)}", "launch.device=cuda"),
    ]


def _training(task: PublishedTraining, systems: Sequence[str], two: bool) -> str:
    """Full training with five seeds. GPipe with one microbatch is system=naive (P9)."""
    batches = math.ceil(task.samples / task.batch)
    updates = math.ceil(batches / STAGES) if two else batches
    names = ["naive" if name == "gpipe" else name for name in systems]
    words = [*_base(task, names), f"seed={SEEDS}", f"batch.size={task.batch}"]
    words += [f"optimizer.lr={_rate(task, updates)}", f"optimizer.weight_decay={task.decay:g}"]
    words += [f"measure.rounds={task.epochs}", f"measure.batches={batches}"]
    return shlex.join([*words, f"measure.eval_batches={task.held_out // task.batch}"])


def _rate(task: PublishedTraining, updates: int) -> str:
    """Learning-rate schedule of a training with `updates` updates per epoch."""
    if match := DECAYS.search(task.schedule):
        steps = ",".join(str(int(epoch) * updates) for epoch in match.groups() if epoch)
        return f"{{_target_:suite.engine.optim.lr_schedule.Steps,lr:{task.rate:g},milestones:[{steps}],factor:0.1}}"
    if task.schedule == "polynomial":
        return f"{{_target_:suite.engine.optim.lr_schedule.Polynomial,lr:{task.rate:g},total:{task.epochs * updates}}}"
    return f"{task.rate:g}"


def _short(task: PublishedTraining, systems: Sequence[str]) -> str:
    """A few timed batches."""
    words = [*_base(task, systems), f"batch.size={task.batch}", "measure.rounds=5", "measure.batches=20"]
    return shlex.join([*words, "measure.eval_batches=0"])


def _memory(task: PublishedTraining, systems: Sequence[str]) -> str:
    """Sweep over batch sizes up to the largest that fits. GPipe divides its mini-batch into four microbatches (P9)."""
    parts = []
    streams = [name for name in systems if name != "gpipe" and (name != "spectrain" or task.optimizer == "sgdm")]
    if "gpipe" in systems:
        sizes = f"batch.size=range({16 * STAGES},{MOST_BATCH * STAGES},{2 * STAGES})"
        parts.append([*_base(task, ["gpipe"]), sizes, f"batch.microbatch='${{per_replica:${{batch.size}},{STAGES}}}'"])
    if streams:
        parts.append([*_base(task, streams), f"batch.size=range(16,{MOST_BATCH},2)"])
    short = ["measure.rounds=1", "measure.batches=8", "measure.eval_batches=0"]
    return _joined(shlex.join([*part, *short]) for part in parts)
