"""Documents name what exists: links, modules, packages and files of a paper. The README is short and lists all."""

from __future__ import annotations

import ast
import re
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from suite import papers

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?://)([^)#]+)")
README_LINES = 200
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files(document: Path) -> None:
    links = LINK.findall(document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_every_document_is_listed() -> None:
    listed = {
        (index.parent / link).resolve()
        for index in (ROOT / "README.md", ROOT / "docs/adr/README.md")
        for link in LINK.findall(index.read_text(encoding="utf-8"))
    }
    assert [path for path in DOCUMENTS[1:] if path not in listed] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


def test_every_path_in_the_architecture_exists() -> None:
    paths = re.findall(r"`((?:suite|baselines|conf|docs|tests)(?:/[\w./]*)?)(?:: \w+)?`", ARCHITECTURE)
    assert len(paths) >= 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


WALKS = ["An op, from schedule to wire", "A configuration, from YAML to record", "A claim, from its row to its verdict"]


@pytest.mark.parametrize("title", WALKS)
def test_hops_of_a_walk_name_existing_functions(title: str) -> None:
    walk = ARCHITECTURE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    hops = re.split(r"^\d+\. ", walk, flags=re.MULTILINE)[1:]
    assert 5 <= len(hops) <= 10
    assert [hop for hop in hops if not re.match(r"`suite/[\w/]+\.py: \w+`", hop)] == []
    for file, function in re.findall(r"`([\w/]+\.py): (\w+)`", walk):
        code = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert function in {node.name for node in ast.walk(code) if isinstance(node, ast.FunctionDef)}, (
            f"{file}: {function}"
        )


def test_concepts_list_every_package() -> None:
    listed = re.findall(r"(?<=  )suite/(\w+)(?= )", (ROOT / "docs/concepts.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(path.parent.name for path in (ROOT / "suite").glob("*/__init__.py"))


def test_the_papers_docstring_names_their_files() -> None:
    """Each file of common/, and each that two papers have, by its name or by a pattern."""
    file_names = re.findall(r"[\w*]+\.(?:py|yaml|md)\b", papers.__doc__ or "")
    files = [path for path in (ROOT / "suite/papers").glob("*/*.*") if path.name != "__init__.py"]
    shared = Counter(path.name for path in files if path.parent.name != "common")
    kinds = {name for name, count in shared.items() if count > 1} | {p.name for p in files if p.parent.name == "common"}
    assert [name for name in sorted(kinds) if not any(fnmatchcase(name, pattern) for pattern in file_names)] == []
