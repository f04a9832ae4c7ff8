"""Places that turn data into code or objects: pickles, unsafe YAML, evaluated text, shells, modules by name.

A record, a checkpoint or a graph may come from an untrusted source. `REASONS` lists each such place in suite and
baselines with its reason. The test fails for a new place and for an entry without a place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.trees import trees

PICKLES = (
    *("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle"),
    "submitit",
)
CALLS = {  # calls by kind: one name is the last part of a dotted name, two are its last parts
    "torch.load": "torch.load",
    "yaml.load": "yaml.load yaml.load_all yaml.unsafe_load yaml.full_load",
    "a shell": "os.system os.popen subprocess.getoutput subprocess.getstatusoutput",
    "a module by its name": "importlib.import_module import_module __import__",
    "a file that is run": "runpy.run_path runpy.run_module exec_module",
    "a class by its name": "hydra.instantiate utils.instantiate",
    "evaluated text": "eval exec compile",
    "a pickle": "Unpickler read_pickle",
    "a pickled message": "comm.allgather comm.bcast comm.gather comm.scatter all_gather_object gather_object "
    "send_object recv_object broadcast_object_list scatter_object_list send_object_list recv_object_list",
}
BY_NAME = {tuple(name.split(".")): kind for kind, names in CALLS.items() for name in names.split()}
REASONS = {
    ("suite/__init__.py", "a module by its name"): "names from a table in that file",
    ("suite/cli/main.py", "a module by its name"): "names from a table in that file",
    ("suite/config/compose.py", "a pickle"): "copies of parsed YAML within the process",
    ("suite/config/locate.py", "a module by its name"): "modules of the suite, or of a folder in launch.python_path",
    ("suite/whatif/pasted.py", "evaluated text"): "Python of the page's reader, in a browser, after a press of Run",
    ("suite/whatif/catalogue.py", "a module by its name"): "classes of conf/, which a word of a link cannot name",
    ("suite/config/typed_yaml.py", "yaml.load"): "the C version of the safe loader",
    ("suite/engine/checkpoint/model_files.py", "torch.load"): "weights_only=True reads tensors, and refuses the rest",
    ("suite/engine/torch_api/state_dicts.py", "torch.load"): "weights_only=True reads tensors, of another rank",
    ("suite/claims/answer.py", "a module by its name"): "modules of suite.papers that a claim's row names",
    ("suite/claims/panel.py", "a module by its name"): "panels of the papers, which are folders of the suite",
    ("suite/claims/mutate.py", "a module by its name"): "modules of the suite that a committed file names",
    ("suite/claims/mutate.py", "evaluated text"): "source of the suite, changed as a committed file says",
    ("suite/claims/load.py", "yaml.load"): "libyaml's safe loader, ten times as fast",
    ("suite/runner/slurm.py", "a pickle"): "a job reads a function's name and its arguments in the folder of its sweep",
    ("suite/comm/p2p/mpi.py", "a pickled message"): "host names and a port, exchanged by ranks before training",
    ("suite/comm/collective/process_group.py", "a pickled message"): "order of ranks, exchanged by the ranks of a run",
}


def parts(node: ast.AST) -> tuple[str, ...]:
    """Names of a dotted expression; parts that are not names are left out."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        return (*parts(node.value), node.attr)
    return ()


def findings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and kind of each place in a module that could turn data into code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            names = [module, *(alias.name for alias in node.names)]
            if any(name.partition(".")[0] in PICKLES for name in names):
                yield node.lineno, "a pickle"
            pairs = [(module.rpartition(".")[2], name) for name in names[1:]]
            yield from ((node.lineno, BY_NAME[pair]) for pair in pairs if pair in BY_NAME)
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, kind) for kind in of_call(node))


def of_call(node: ast.Call) -> Iterator[str]:
    name = parts(node.func)
    if name[-2:] in BY_NAME:
        yield BY_NAME[name[-2:]]
    elif name[-1:] in BY_NAME and not (len(name) > 1 and name[-1] in ("eval", "exec", "compile")):
        yield BY_NAME[name[-1:]]  # re.compile and model.eval are harmless
    words = {word.arg: word.value.value if isinstance(word.value, ast.Constant) else None for word in node.keywords}
    for word, harmless, kind in (
        ("allow_pickle", False, "a pickle"),
        ("weights_only", True, "torch.load"),
        ("shell", False, "a shell"),
    ):
        if word in words and words[word] is not harmless:
            yield kind
    if name[-2:] in (("np", "load"), ("numpy", "load")) and "allow_pickle" not in words:
        yield "a pickle"  # the default of numpy has changed before


def test_every_place_that_turns_data_into_code_is_listed() -> None:
    places = [(path, line, kind) for path, tree in trees().items() for line, kind in findings(tree)]
    assert [f"{path}:{line} {kind}" for path, line, kind in places if (path, kind) not in REASONS] == []
    assert REASONS.keys() - {(path, kind) for path, _, kind in places} == set(), "entries without a place"


def test_each_kind_of_place_is_found_and_harmless_calls_are_not() -> None:
    dangerous = {
        "a pickle": [
            *("import pickle", "from cloudpickle import dumps", "def f():\n    import dill as d", "np.load(path)"),
            *("np.load(path, allow_pickle=True)", "np.load(path, allow_pickle=chosen)", "pd.read_pickle(path)"),
        ],
        "torch.load": ["torch.load(path)", "t.load(path, weights_only=False)"],
        "yaml.load": ["yaml.load(text, Loader=L)", "from yaml import unsafe_load"],
        "a file that is run": ["spec.loader.exec_module(made)"],
        "evaluated text": ["eval(text)", "exec(text)", "compile(text, '', 'exec')"],
        "a shell": ["os.system(line)", "subprocess.run(line, shell=True)", "subprocess.run(line, shell=chosen)"],
        "a module by its name": ["importlib.import_module(name)", "import_module(name)", "__import__(name)"],
        "a pickled message": ["dist.all_gather_object(a, b)"],
        "a class by its name": ["hydra.utils.instantiate(config)"],
    }
    for kind, lines in dangerous.items():
        for line in lines:
            assert kind in {found for _, found in findings(ast.parse(line))}, line
    harmless = ("re.compile(text)", "model.eval()", "np.load(path, allow_pickle=False)", "json.loads(text)")
    for line in (*harmless, "yaml.safe_load(text)", "subprocess.run(line)", "torch.compile(model)"):
        assert not list(findings(ast.parse(line))), line
