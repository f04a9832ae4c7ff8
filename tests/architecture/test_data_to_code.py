"""Places that turn data into code or objects: pickles, unsafe YAML, evaluated text, shells, modules by name.

A record, a checkpoint or a graph may come from an untrusted source. `REASONS` lists each such place in suite and
baselines with its reason. The test fails for a new place and for an entry without a place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PICKLES = ("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle")
# calls by the last two parts of their names; BY_NAME holds calls by the last part
BY_PAIR = {
    ("torch", "load"): "torch.load",
    ("yaml", "load"): "yaml.load",
    ("yaml", "load_all"): "yaml.load",
    ("yaml", "unsafe_load"): "yaml.load",
    ("yaml", "full_load"): "yaml.load",
    ("os", "system"): "a shell",
    ("os", "popen"): "a shell",
    ("subprocess", "getoutput"): "a shell",
    ("subprocess", "getstatusoutput"): "a shell",
    ("importlib", "import_module"): "a module by its name",
    ("runpy", "run_path"): "a file that is run",
    ("runpy", "run_module"): "a file that is run",
    ("comm", "allgather"): "a pickled message",
    ("comm", "bcast"): "a pickled message",
    ("comm", "gather"): "a pickled message",
    ("comm", "scatter"): "a pickled message",
    ("hydra", "instantiate"): "a class by its name",
    ("utils", "instantiate"): "a class by its name",
}
BY_NAME = {
    **dict.fromkeys(("eval", "exec", "compile"), "evaluated text"),
    "__import__": "a module by its name",
    "import_module": "a module by its name",
    "Unpickler": "a pickle",
    "read_pickle": "a pickle",
    "exec_module": "a file that is run",
    **{f"{name}_object": "a pickled message" for name in ("all_gather", "gather", "send", "recv")},
    **{f"{name}_object_list": "a pickled message" for name in ("broadcast", "scatter", "send", "recv")},
}
REASONS = {
    ("suite/__init__.py", "a module by its name"): "names from a table in that file",
    ("suite/cli/main.py", "a module by its name"): "names from a table in that file",
    ("suite/config/locate.py", "a module by its name"): "modules of the suite, or of a folder in launch.python_path",
    ("suite/config/typed_yaml.py", "yaml.load"): "the C version of the safe loader",
    ("suite/engine/gather.py", "torch.load"): "weights_only=True reads tensors, and refuses everything else",
    ("suite/papers/common/answer.py", "a module by its name"): "modules of suite.papers that a claim's row names",
    ("suite/papers/common/mutations.py", "a module by its name"): "modules of the suite that a committed file names",
    (
        "suite/papers/common/mutations.py",
        "evaluated text",
    ): "source of the suite with the change that a committed file names",
    (
        "suite/data/graphs/safe_pickle.py",
        "a pickle",
    ): "reads numbers from published pickles without executing code",
    ("suite/papers/common/claims.py", "yaml.load"): "libyaml's safe loader, ten times as fast",
    (
        "suite/comm/p2p/mpi.py",
        "a pickled message",
    ): "host names and a port, exchanged by the ranks of one run before training",
    (
        "suite/comm/collective/process_group.py",
        "a pickled message",
    ): "order of ranks, exchanged by the ranks of one run",
}


def parts(node: ast.AST) -> tuple[str, ...]:
    """Names of a dotted expression; parts that are not names are left out."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        return (*parts(node.value), node.attr)
    return ()


def findings(text: str) -> Iterator[tuple[int, str]]:
    """Line and kind of each place in a module that could turn data into code."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] in PICKLES for name in names):
                yield node.lineno, "a pickle"
            if isinstance(node, ast.ImportFrom):
                pairs = [((node.module or "").rpartition(".")[2], alias.name) for alias in node.names]
                # an imported import_module is found where it is called
                yield from ((node.lineno, BY_PAIR[pair]) for pair in pairs if pair in BY_PAIR)
        if not isinstance(node, ast.Call):
            continue
        name = parts(node.func)
        if name[-2:] in BY_PAIR:
            yield node.lineno, BY_PAIR[name[-2:]]  # type: ignore[index]
        elif name and (len(name) == 1 or name[-1] not in ("eval", "exec", "compile")) and name[-1] in BY_NAME:
            yield node.lineno, BY_NAME[name[-1]]  # re.compile and model.eval are harmless
        for word in node.keywords:
            is_false = isinstance(word.value, ast.Constant) and word.value.value is False
            if word.arg == "allow_pickle" and not is_false:
                yield node.lineno, "a pickle"
            if word.arg == "weights_only" and not (isinstance(word.value, ast.Constant) and word.value.value is True):
                yield node.lineno, "torch.load"
            if word.arg == "shell" and not is_false:
                yield node.lineno, "a shell"
        if name[-2:] in (("np", "load"), ("numpy", "load")) and "allow_pickle" not in {w.arg for w in node.keywords}:
            yield node.lineno, "a pickle"  # the default of numpy has changed before


def modules() -> list[Path]:
    return sorted(path for folder in ("suite", "baselines") for path in (ROOT / folder).rglob("*.py"))


def test_every_place_that_turns_data_into_code_is_listed() -> None:
    places = [
        (path.relative_to(ROOT).as_posix(), line, kind)
        for path in modules()
        for line, kind in findings(path.read_text(encoding="utf-8"))
    ]
    unlisted = [f"{path}:{line} {kind}" for path, line, kind in places if (path, kind) not in REASONS]
    assert not unlisted, unlisted
    stale = REASONS.keys() - {(path, kind) for path, _, kind in places}
    assert not stale, f"entries without a place: {sorted(stale)}"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("import pickle", "a pickle"),
        ("from cloudpickle import dumps", "a pickle"),
        ("def f():\n    import dill as d", "a pickle"),
        ("torch.load(path)", "torch.load"),
        ("t.load(path, weights_only=False)", "torch.load"),
        ("np.load(path)", "a pickle"),
        ("np.load(path, allow_pickle=True)", "a pickle"),
        ("np.load(path, allow_pickle=chosen)", "a pickle"),
        ("yaml.load(text, Loader=L)", "yaml.load"),
        ("from yaml import unsafe_load", "yaml.load"),
        ("pd.read_pickle(path)", "a pickle"),
        ("spec.loader.exec_module(made)", "a file that is run"),
        ("eval(text)", "evaluated text"),
        ("exec(text)", "evaluated text"),
        ("compile(text, '', 'exec')", "evaluated text"),
        ("os.system(line)", "a shell"),
        ("subprocess.run(line, shell=True)", "a shell"),
        ("subprocess.run(line, shell=chosen)", "a shell"),
        ("importlib.import_module(name)", "a module by its name"),
        ("import_module(name)", "a module by its name"),
        ("__import__(name)", "a module by its name"),
        ("dist.all_gather_object(a, b)", "a pickled message"),
        ("hydra.utils.instantiate(config)", "a class by its name"),
    ],
)
def test_each_kind_of_place_is_found(line: str, kind: str) -> None:
    assert kind in {place for _, place in findings(line)}


@pytest.mark.parametrize(
    "line",
    [
        "re.compile(text)",
        "model.eval()",
        "np.load(path, allow_pickle=False)",
        "json.loads(text)",
        "yaml.safe_load(text)",
        "subprocess.run(line)",
        "torch.compile(model)",
    ],
)
def test_similar_harmless_calls_are_accepted(line: str) -> None:
    assert not list(findings(line))
