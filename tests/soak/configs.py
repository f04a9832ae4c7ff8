"""Random configurations: choices and keys of conf/, with values that are legal, absurd or missing.

Nothing here lists a key: groups, choices and keys are read from conf/ itself, so that a new one is tried the day it
is there. Most configs change a few things, as a config that breaks ten rules is refused for the first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from suite.config.compose import composed
from suite.config.families import CONF, content, groups

ALONE = ("experiment", "scale", "grid", "launch", "cost", "executor")  # groups that are not drawn as others
EXECUTORS = ["check", "simulated"] * 8 + groups()["executor"]
GRAPHS = ("volumes", "full_graph")
SYSTEMS = [name for name in groups()["system"] if "aware" in name] + ["cagnet", "axonn"]
COUNTS = (1, 1, 1, 2, 2, 3, 4, 5, 7, 8, 16, 24, 64)
HUGE = "1" + 400 * "0"  # more than a float holds
NUMBERS = (
    *("0", "-1", "1", "2", "3", "4", "7", "8", "10", "64", "1000", "4096", "1000000", "1000000000", str(10**20), HUGE),
    *("9223372036854775808", "-5", "0.5", "0.9", "0.25", "1.0", "-0.5", "1e-300", "1e308", "nan", "inf", "-inf"),
)
OTHERS = (
    *("null", "true", "false", "''", "text", "auto", "none", "even", "'two words'", "'ünï'", "'雪'", "'\\u0000'"),
    "'%s'",
    *("[]", "[1]", "[a,b]", "[[1,2],[]]", "[null]", "{}", "{a:1}", "{_target_:os.getcwd}", "{_target_:5}", "???"),
    *("'${seed}'", "'${nowhere}'", "'${grid}'", "'a=b'", "'../..'", "'/nowhere/x.json'", "'x.json'", "'0x10'", "'1'"),
    *("suite.core.grid.Grid", "'no.such.module'", "'.'", "'suite'", "float16", "bfloat16", "cuda", "gloo", "torchrun"),
)
LINES = (
    *("=", "=1", "grid.inter", "grid.inter=", "~grid.inter", "~batch", "+batch.more=1", "++new.key=1", "seed==1", "@"),
    *("a b=1", "model=[gpt_tiny,gcn]", "system=axonn,gpipe", "grid.inter=1,2", "grid.inter=range(1,3)", "-m", "--help"),
    *("experiment.runs=['seed=1,2']", "experiment.runs=[a]", "experiment.runs=5", "experiment.runs=['nowhere=1']"),
    *("hydra.run.dir=x", "schedule@other=gpipe", "~schedule", "system=null", "model=null", "'seed=1'", "$seed=1"),
    *("experiment.expected_seconds=0", "experiment.expected_seconds=text"),
    *("launch.python_path=nowhere", "launch.python_path=[1]"),
    *("launch.mpiexec=nowhere", "data.folder=nowhere", "reports=null", "\u00fc=1", "@nowhere.yaml", "rerun=5"),
)
FILES = ("- grid.inter=2", "- 5", "grid.inter: 2", "[", "\u0000", "- '@x'", "- grid.inter=0\n- seed=-1", "", "- ''")


@cache
def choices() -> Mapping[str, list[str]]:
    """By group, the choices that a config may name."""
    return {group: names for group, names in groups().items() if group not in ALONE}


def leaves(data: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The dotted paths of all that has a value, and of what holds them, each with what stands there."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if isinstance(key, str) and "@" not in key and key not in ("defaults", "hydra"):
                yield from ((f"{path}{key}", value), *leaves(value, f"{path}{key}."))


@cache
def base() -> Mapping[str, Any]:
    """Every key of a plain config that is no group's own."""
    spare = (*groups(), "draw")
    return {key: value for key, value in leaves(composed([]), "") if key not in spare and not key.startswith(spare)}


@cache
def keys(group: str, choice: str) -> Mapping[str, Any]:
    """The keys that a choice of a group brings."""
    chosen = content(group, choice)
    entries = leaves(chosen.keys, "" if chosen.is_global else f"{group}.")
    return {key: value for key, value in entries if "." in key}


@cache
def answers() -> Mapping[str, list[str]]:
    """By key, what experiments of at most a minute say of it on their runs' lines."""
    values_by_key: dict[str, list[str]] = {}
    for name in groups()["experiment"]:
        experiment = content("experiment", name).keys["experiment"]
        if experiment["expected_seconds"] <= 60:
            for key, value in re.findall(r"([a-z_]+(?:\.[a-z_]+)+)=([\w.]+)", str(experiment.get("runs"))):
                values_by_key.setdefault(key, []).append(value)
    return values_by_key


@cache
def class_paths() -> list[str]:
    """Names of the suite in conf/."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(CONF.rglob("*.yaml"))]
    return sorted({path for text in texts for path in re.findall(r"\b(?:suite|baselines)(?:\.\w+)+", text)})


def near(random: Random, value: Any) -> str:
    """Of the kind that stands there."""
    if isinstance(value, str) and value in class_paths():
        return random.choice(class_paths())
    if isinstance(value, bool):
        return random.choice(("true", "false"))
    if isinstance(value, int):
        return str(random.choice((*COUNTS, max(0, value - 1), value + 1, 2 * value)))
    if isinstance(value, float):
        return repr(random.choice((0.0, 0.5, 0.9, 1.0, value / 10, value * 10, value * 1e6)))
    return random.choice(OTHERS)


def any_value(random: Random, text: str) -> str:
    """A count is drawn more often than another number, a number more often than other values."""
    odd = random.choice((str(random.randint(-(10**6), 10**6)), repr(random.uniform(-1e9, 1e9)), f"'{text}'"))
    return random.choice((str(random.choice(COUNTS)), random.choice(NUMBERS), random.choice(OTHERS), odd))


def shape(random: Random) -> list[str]:
    """A grid, and most often a batch that it divides."""
    inter, data, each, times = (random.choice(COUNTS) for _ in range(4))
    size = each * data * times if random.random() < 0.8 else random.choice(COUNTS)
    settings = {"grid.inter": inter, "grid.data": data, "batch.microbatch": each, "batch.size": size}
    return [f"{name}={value}" for name, value in settings.items()]


def chosen(random: Random, executor: str) -> list[tuple[str, str]]:
    """Groups with a choice of each, which there may not be."""
    alternatives = choices()
    drawn = random.sample(sorted(alternatives), random.choice((0, 0, 1, 1, 2, 4)))
    if random.random() < 0.8 and "system" not in drawn:
        drawn.insert(0, "system")
    selected = [(group, random.choice(alternatives[group])) for group in drawn]
    if executor in GRAPHS:
        selected = [(group, random.choice(SYSTEMS) if group == "system" else choice) for group, choice in selected]
    if selected and random.random() < 0.02:
        selected[-1] = (selected[-1][0], random.choice(("nothing", "null", "5", "''", "[]", "{}", "../system/axonn")))
    return selected


def config(random: Random, folder: Path) -> list[str]:
    """The overrides of one command line. folder: where its files lie."""
    text = "".join(filter(str.isprintable, map(chr, random.choices(range(0x20, 0xD800), k=random.randint(0, 8)))))
    text = re.sub(r"['\\\\]", "", text)
    executor = random.choice(EXECUTORS)
    groups_of = chosen(random, executor)
    overrides = [f"executor={executor}", *(f"{group}={choice}" for group, choice in groups_of)]
    defaults = list(base().items())
    for group, choice in [("executor", executor), *groups_of]:
        choice_keys = keys(group, choice) if group == "executor" or choice in choices()[group] else {}
        times = 1 if group == "executor" else 3  # what was chosen is looked at more closely
        defaults += list(choice_keys.items()) * times
        for name, value in choice_keys.items():
            if value == "???" and random.random() < 0.9:
                files = [folder, folder / "nowhere", folder / "3.yaml"]
                overrides.append(f"{name}={random.choice(answers().get(name) or files)}")
    if random.random() < 0.8:
        overrides += shape(random)
    for name, value in random.sample(defaults, random.choice((0, 0, 0, 1, 1, 1, 2, 3))):
        if random.random() < 0.03:
            overrides.append(f"~{name}")
        elif not name.endswith("_target_") or random.random() < 0.3:
            overrides.append(f"{name}={near(random, value) if random.random() < 0.5 else any_value(random, text)}")
    if random.random() < 0.03:
        overrides.insert(random.randint(0, len(overrides)), random.choice(LINES))
    elif random.random() < 0.02:
        number = random.randrange(len(FILES))
        file = folder / f"{number}.yaml"
        if not file.exists():
            file.write_text(FILES[number], encoding="utf-8")
        overrides.append(f"@{file}")
    return overrides
