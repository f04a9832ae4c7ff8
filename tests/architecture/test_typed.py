"""Code outside suite/config takes typed configurations and does not probe objects for members by name."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = [path for folder in ("suite", "baselines") for path in sorted((ROOT / folder).rglob("*.py"))]
CONFIG = ("suite/config/", "suite/core/record.py")
BORDERS = {  # modules that read data of unknown shape and validate it
    "suite/papers/common/claims.py": "rows of the claims' YAML files, checked field by field",
    "suite/engine/optim/torch_optimizer.py": "parameter groups of torch.optim, whose settings depend on the optimizer",
    "suite/engine/optimizer_states.py": "state dicts of torch.optim, whose states depend on the optimizer",
    "suite/data/graphs/safe_pickle.py": "pickled graphs, read without executing code",
}
MAPPINGS = ("dict", "Dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict", "DefaultDict")
VALUES = ("Any", "object")
LIMITS = {"hasattr": 0, "getattr": 10}  # calls in suite and baselines together


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def outside(path: Path) -> bool:
    return not name_of(path).startswith(CONFIG)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def is_config(node: ast.expr) -> bool:
    """Whether an expression is a variable or an attribute with the name `config`."""
    return (isinstance(node, ast.Name) and node.id == "config") or (
        isinstance(node, ast.Attribute) and node.attr == "config"
    )


def subscripts(tree: ast.AST) -> list[int]:
    """Lines that look up a key of a configuration by a literal."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and is_config(node.value) and isinstance(node.slice, ast.Constant)
    ]


def probes(tree: ast.AST) -> Counter[str]:
    """Number of probes for a member by function name."""
    counts: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            literal = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
            if node.func.id == "hasattr" or (node.func.id == "getattr" and literal):
                counts[node.func.id] += 1
    return counts


def last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def is_mapping(node: ast.AST) -> bool:
    return last_name(node) in MAPPINGS


def untyped(annotation: ast.AST) -> Iterator[str]:
    """Mappings without a value type in an annotation, also in unions, in nested types and in quotes."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        yield from untyped(ast.parse(annotation.value, mode="eval").body)
    elif isinstance(annotation, ast.Subscript):
        parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if last_name(annotation.value) == "Literal":
            return
        if is_mapping(annotation.value) and last_name(parts[-1]) in VALUES:
            yield ast.unparse(annotation)
        for part in parts:
            yield from untyped(part)
    elif is_mapping(annotation):
        yield ast.unparse(annotation)
    else:
        for child in ast.iter_child_nodes(annotation):
            yield from untyped(child)


def types_in(node: ast.AST) -> Iterator[ast.expr]:
    """Annotations, type aliases and base classes in a node."""
    if isinstance(node, ast.arg) and node.annotation is not None:
        yield node.annotation
    elif isinstance(node, ast.AnnAssign):
        yield node.annotation
        if last_name(node.annotation) == "TypeAlias" and node.value is not None:
            yield node.value
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Subscript | ast.BinOp):
        yield from (each for each in ast.walk(node.value) if isinstance(each, ast.Subscript) and is_mapping(each.value))
        yield from [node.value] if is_mapping(node.value) else []
    elif isinstance(node, ast.ClassDef):
        yield from (base for base in node.bases if isinstance(base, ast.Subscript) or is_mapping(base))


def untyped_in(tree: ast.AST) -> list[str]:
    return [text for node in ast.walk(tree) for each in types_in(node) for text in untyped(each)]


def decorated(tree: ast.AST) -> set[str]:
    """Names of the runtime-checkable protocols of a tree."""
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        if any(ast.unparse(each).endswith("runtime_checkable") for each in node.decorator_list)
    }


def instance_checks(tree: ast.AST, names: set[str]) -> list[int]:
    """Lines that call isinstance or issubclass with one of these classes."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            kinds = [part for part in ast.walk(node.args[1]) if isinstance(part, ast.Name | ast.Attribute)]
            if names & {ast.unparse(kind).rpartition(".")[2] for kind in kinds}:
                lines.append(node.lineno)
    return lines


def test_no_config_key_is_looked_up_outside_suite_config() -> None:
    lookups = {name_of(path): lines for path in FILES if outside(path) if (lines := subscripts(parsed(path)))}
    assert lookups == {}


def test_members_are_not_probed_by_name() -> None:
    counts = sum((probes(parsed(path)) for path in FILES), Counter[str]())
    assert {name: count for name, count in counts.items() if count > LIMITS[name]} == {}


def test_mappings_have_types_outside_the_borders() -> None:
    mappings = {
        name_of(path): texts
        for path in FILES
        if outside(path) and name_of(path) not in BORDERS
        if (texts := untyped_in(parsed(path)))
    }
    assert mappings == {}


@pytest.mark.parametrize("name", BORDERS)
def test_every_border_still_reads_untyped_data(name: str) -> None:
    assert untyped_in(parsed(ROOT / name))


def test_every_kind_of_probe_is_found() -> None:
    tree = ast.parse('def f(a): return hasattr(a, "b"), getattr(a, "c", 1), a.config["d"]')
    assert probes(tree) == Counter(hasattr=1, getattr=1)
    assert subscripts(tree) == [1]


@pytest.mark.parametrize(
    "code",
    [
        "def f(a: Mapping[str, Any]): ...",
        "def f(*, a: dict[str, object] | None = None): ...",
        "def f(*a: dict): ...",
        "def f(a: 'list[dict[str, Any]]'): ...",
        "class A:\n    b: dict[str, dict[str, Any]]",
        "self.a: collections.abc.MutableMapping[Any, typing.Any] = {}",
        "Data = dict[str, Any]",
        "Data = dict",
        "Data = Mapping[str, Sequence[Mapping[str, Any]]]",
        "Data: TypeAlias = 'dict[str, Any]'",
        "class Data(dict[str, Any]): ...",
        "a: Callable[[Mapping], int]",
    ],
)
def test_untyped_mapping_is_found(code: str) -> None:
    assert untyped_in(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "def f(a: Mapping[str, float], **arguments: Any): ...",
        "def f(a: Literal['dict']) -> dict[str, Any]: ...",
        "class A(TypedDict):\n    b: Any",
        "a = table[dict]",
        "a: Mapping[str, list[Any]]",
    ],
)
def test_typed_mapping_is_accepted(code: str) -> None:
    assert untyped_in(ast.parse(code)) == []


def test_no_isinstance_check_against_a_protocol() -> None:
    trees = {path: parsed(path) for path in FILES}
    names = set().union(*map(decorated, trees.values()))
    checks = {
        path.relative_to(ROOT).as_posix(): lines
        for path, tree in trees.items()
        if outside(path)
        if (lines := instance_checks(tree, names))
    }
    assert checks == {}


def test_isinstance_check_against_a_protocol_is_found() -> None:
    protocol = "@typing.runtime_checkable\nclass Streams(Protocol): ...\n"
    tree = ast.parse(f"{protocol}isinstance(a, Streams)\nisinstance(a, int | b.Streams)\nisinstance(a, int)")
    assert decorated(tree) == {"Streams"}
    assert instance_checks(tree, {"Streams"}) == [3, 4]
