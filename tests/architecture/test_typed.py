"""Code outside suite/config takes typed configurations and does not probe objects for members by name."""

from __future__ import annotations

import ast
import re

from tests.architecture.trees import sources, trees

CONFIG = ("suite/config/", "suite/core/record.py")
BORDERS = {  # modules that read data of unknown shape and validate it: rows of YAML, states of torch.optim, pickles
    *(
        "suite/claims/load.py",
        "suite/engine/torch_api/torch_optimizer.py",
        "suite/engine/torch_api/optimizer_states.py",
        "suite/whatif/catalogue.py",  # choices.json
        "suite/whatif/pasted.py",  # definitions of pasted Python
    ),
}
MOST_PROBES = 10  # calls of getattr with a literal name in suite and baselines together
NAMES = r"(?:dict|Dict|Mapping|MutableMapping|OrderedDict|defaultdict|DefaultDict)"
UNTYPED = re.compile(rf"\b{NAMES}(?!\[)\b|\b{NAMES}\[[^,\[\]]+, (?:typing\.)?(?:Any|object)\]")


def untyped(tree: ast.AST) -> list[str]:
    """Annotations of arguments and variables, aliases and bases that name a mapping without the type of its values."""
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            found.append(node.annotation)
            if ast.unparse(node.annotation) == "TypeAlias":
                found.append(node.value)
        elif isinstance(node, ast.ClassDef):
            found += node.bases
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Subscript | ast.BinOp):
            mappings = [each for each in ast.walk(node.value) if isinstance(each, ast.Subscript)]
            found += [each for each in mappings if re.fullmatch(rf"(\w+\.)*{NAMES}", ast.unparse(each.value))]
            found += [node.value] if re.fullmatch(NAMES, ast.unparse(node.value)) else []
    texts = [ast.unparse(each) for each in found]
    return [text for text in texts if "Literal" not in text and UNTYPED.search(text)]


def test_code_outside_the_borders_is_typed() -> None:
    outside = {path: tree for path, tree in trees().items() if not path.startswith(CONFIG)}
    looked_up = re.compile(r"\bconfig\[[\"'\d]")
    assert [path for path in outside if looked_up.search(sources()[path])] == []
    mappings = {path: texts for path, tree in outside.items() if (texts := untyped(tree))}
    assert mappings.keys() == BORDERS, mappings
    protocols = re.findall(r"runtime_checkable\nclass (\w+)", "\n".join(sources().values()))
    checked = re.compile(rf"is(?:instance|subclass)\([^()]*\b(?:{'|'.join(protocols) or '$.'})\b")
    assert [path for path in outside if checked.search(sources()[path])] == []


def test_members_are_not_probed_by_name() -> None:
    code = "\n".join(sources().values())
    assert re.findall(r"\bhasattr\(", code) == []
    assert len(re.findall(r"\bgetattr\([^()]*, \"", code)) <= MOST_PROBES
