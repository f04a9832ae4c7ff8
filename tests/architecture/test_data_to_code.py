"""Places that turn data into code or objects: pickles, open YAML, evaluated text, shells, modules by name.

A record, a checkpoint or a graph may come from anybody. `REASONS` lists each such place in suite and baselines with its
reason; a new place and an entry without a place are both red.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PICKLES = ("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle")
# calls by the last two parts of their names, or by the last where one part is enough
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
    ("suite/__init__.py", "a module by its name"): "one of a table in that file",
    ("suite/cli/main.py", "a module by its name"): "one of a table in that file",
    ("suite/config/locate.py", "a module by its name"): "of the suite, or of a folder that the user has chosen",
    ("suite/papers/common/answer.py", "a module by its name"): "of suite.papers, as the claims' own files name it",
    ("suite/papers/common/mutations.py", "a module by its name"): "of the suite, which a committed file names",
    ("suite/papers/common/mutations.py", "evaluated text"): "of the suite, with a passage of a committed file changed",
    (
        "suite/data/graphs/safe_pickle.py",
        "a pickle",
    ): "a reader that takes numbers out of published pickles and runs nothing",
    ("suite/papers/common/claims.py", "yaml.load"): "with libyaml's safe loader, which is ten times as fast",
    (
        "suite/comm/p2p/mpi.py",
        "a pickled message",
    ): "host names and a port among the ranks of one run, before they train",
    (
        "suite/comm/collective/process_group.py",
        "a pickled message",
    ): "which rank follows which, among the ranks of one run",
}


def parts(node: ast.AST) -> tuple[str, ...]:
    """The names of a dotted expression, the last part first to go where it is none."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        return (*parts(node.value), node.attr)
    return ()


def findings(text: str) -> Iterator[tuple[int, str]]:
    """Line and kind of everything in a module that could turn data into code."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] in PICKLES for name in names):
                yield node.lineno, "a pickle"
            if isinstance(node, ast.ImportFrom):
                pairs = [((node.module or "").rpartition(".")[2], alias.name) for alias in node.names]
                # a module by its name is looked for where it is called, whatever it was imported as
                yield from ((node.lineno, BY_PAIR[pair]) for pair in pairs if pair in BY_PAIR)
        if not isinstance(node, ast.Call):
            continue
        name = parts(node.func)
        if name[-2:] in BY_PAIR:
            yield node.lineno, BY_PAIR[name[-2:]]  # type: ignore[index]
        elif name and (len(name) == 1 or name[-1] not in ("eval", "exec", "compile")) and name[-1] in BY_NAME:
            yield node.lineno, BY_NAME[name[-1]]  # re.compile, and eval of a network, are others
        for word in node.keywords:
            said = isinstance(word.value, ast.Constant) and word.value.value is False
            if word.arg == "allow_pickle" and not said:
                yield node.lineno, "a pickle"
            if word.arg == "weights_only" and not (isinstance(word.value, ast.Constant) and word.value.value is True):
                yield node.lineno, "torch.load"
            if word.arg == "shell" and not said:
                yield node.lineno, "a shell"
        if name[-2:] in (("np", "load"), ("numpy", "load")) and "allow_pickle" not in {w.arg for w in node.keywords}:
            yield node.lineno, "a pickle"  # the default has changed before


def modules() -> list[Path]:
    return sorted(path for folder in ("suite", "baselines") for path in (ROOT / folder).rglob("*.py"))


def test_nothing_turns_data_into_code_but_what_is_named() -> None:
    found = [
        (path.relative_to(ROOT).as_posix(), line, kind)
        for path in modules()
        for line, kind in findings(path.read_text(encoding="utf-8"))
    ]
    unnamed = [f"{path}:{line} {kind}" for path, line, kind in found if (path, kind) not in REASONS]
    assert not unnamed, unnamed
    unneeded = REASONS.keys() - {(path, kind) for path, _, kind in found}
    assert not unneeded, f"no longer there: {sorted(unneeded)}"


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
def test_each_way_is_seen(line: str, kind: str) -> None:
    assert kind in {found for _, found in findings(line)}


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
def test_what_only_looks_like_it_is_not(line: str) -> None:
    assert not list(findings(line))
