"""Documents name what exists: links, modules, packages and files of a paper. The README is short and lists all."""

from __future__ import annotations

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
    paths = re.findall(r"`((?:suite|baselines|conf|docs|tests)(?:/[\w./]*)?)`", ARCHITECTURE)
    assert len(paths) >= 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_walk_of_a_configuration_visits_at_most_five_packages_and_none_twice() -> None:
    walk = ARCHITECTURE.partition("## A configuration, from YAML to record\n")[2].partition("\n## ")[0]
    steps = re.split(r"^\d+\. ", walk, flags=re.MULTILINE)[1:]
    visited = [{"/".join(path.split("/")[:2]) for path in re.findall(r"`(suite/\w+/\w+\.py)`", step)} for step in steps]
    packages = [package for step in visited for package in sorted(step)]
    assert 4 <= len(packages) <= 5
    assert len(set(packages)) == len(packages)


def test_concepts_list_every_package() -> None:
    listed = re.findall(r"(?<=  )suite/(\w+)(?= )", (ROOT / "docs/concepts.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(path.parent.name for path in (ROOT / "suite").glob("*/__init__.py"))


def test_the_papers_docstring_names_their_files() -> None:
    """Each file of common/, and each that two papers have, by its name or by a pattern."""
    named = re.findall(r"[\w*]+\.(?:py|yaml|md)\b", papers.__doc__ or "")
    files = [path for path in (ROOT / "suite/papers").glob("*/*.*") if path.name != "__init__.py"]
    shared = Counter(path.name for path in files if path.parent.name != "common")
    kinds = {name for name, count in shared.items() if count > 1} | {p.name for p in files if p.parent.name == "common"}
    assert [name for name in sorted(kinds) if not any(fnmatchcase(name, pattern) for pattern in named)] == []
