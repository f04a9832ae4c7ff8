"""Code outside suite/config takes typed configurations and does not probe objects for members by name."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from tests.architecture.trees import trees

CONFIG = ("suite/config/", "suite/core/record.py")
BORDERS = (  # modules that read data of unknown shape and validate it: rows of YAML, states of torch.optim, pickles
    *("suite/papers/common/claims.py", "suite/engine/optim/torch_optimizer.py", "suite/engine/optimizer_states.py"),
    "suite/data/graphs/safe_pickle.py",
)
MAPPINGS = ("dict", "Dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict", "DefaultDict")
VALUES = ("Any", "object")
MOST_PROBES = 10  # calls of getattr with a literal name in suite and baselines together


def outside() -> dict[str, ast.Module]:
    return {path: tree for path, tree in trees().items() if not path.startswith(CONFIG)}


def last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def subscripts(tree: ast.AST) -> list[int]:
    """Lines that look up a key of a variable or an attribute `config` by a literal."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and last_name(node.value) == "config"
        and isinstance(node.slice, ast.Constant)
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


def runtime_checkable(tree: ast.AST) -> set[str]:
    """Names of the runtime-checkable protocols of a tree."""
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        if any(ast.unparse(each).endswith("runtime_checkable") for each in node.decorator_list)
    }


def instance_checks(tree: ast.AST, names: set[str]) -> list[int]:
    """Lines that call isinstance or issubclass with one of these classes."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and last_name(node.func) in ("isinstance", "issubclass")
        if names & {last_name(part) for part in ast.walk(node.args[1])}
    ]


def test_code_outside_the_borders_is_typed() -> None:
    assert {path: lines for path, tree in outside().items() if (lines := subscripts(tree))} == {}
    mappings = {path: texts for path, tree in outside().items() if (texts := untyped_in(tree))}
    assert sorted(mappings) == sorted(BORDERS), mappings
    protocols = set().union(*map(runtime_checkable, trees().values()))
    assert {path: lines for path, tree in outside().items() if (lines := instance_checks(tree, protocols))} == {}


def test_members_are_not_probed_by_name() -> None:
    counts = sum(map(probes, trees().values()), Counter[str]())
    assert counts["hasattr"] == 0
    assert counts["getattr"] <= MOST_PROBES


def test_every_kind_of_untyped_code_is_found() -> None:
    tree = ast.parse('def f(a): return hasattr(a, "b"), getattr(a, "c", 1), a.config["d"]')
    assert (probes(tree), subscripts(tree)) == (Counter(hasattr=1, getattr=1), [1])
    protocol = "@typing.runtime_checkable\nclass Streams(Protocol): ...\n"
    tree = ast.parse(f"{protocol}isinstance(a, Streams)\nisinstance(a, int | b.Streams)\nisinstance(a, int)")
    assert runtime_checkable(tree) == {"Streams"}
    assert instance_checks(tree, {"Streams"}) == [3, 4]
    for code in (
        "def f(a: Mapping[str, Any]): ...",
        "def f(*, a: dict[str, object] | None = None): ...",
        "def f(*a: dict): ...",
        "def f(a: 'list[dict[str, Any]]'): ...",
        "class A:\n    b: dict[str, dict[str, Any]]",
        "self.a: collections.abc.MutableMapping[Any, typing.Any] = {}",
        "Data = dict",
        "Data = Mapping[str, Sequence[Mapping[str, Any]]]",
        "Data: TypeAlias = 'dict[str, Any]'",
        "class Data(dict[str, Any]): ...",
        "a: Callable[[Mapping], int]",
    ):
        assert untyped_in(ast.parse(code)), code
    for code in (
        "def f(a: Mapping[str, float], **arguments: Any): ...",
        "def f(a: Literal['dict']) -> dict[str, Any]: ...",
        "class A(TypedDict):\n    b: Any",
        "a = table[dict]",
        "a: Mapping[str, list[Any]]",
    ):
        assert not untyped_in(ast.parse(code)), code
