"""Documents name what exists: links, modules, packages and functions. The README lists all documents."""

from __future__ import annotations

import ast
import re

from tests.architecture.trees import ROOT, trees

TOP = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
DOCUMENTS = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?://)([^)#]+)")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
READING = (ROOT / "docs/engine.md").read_text(encoding="utf-8")
WALKS = ["An op, from schedule to wire", "A configuration, from YAML to record", "A claim, from its row to its verdict"]


def test_links_lead_to_files_and_every_document_is_listed() -> None:
    links = {path: LINK.findall(path.read_text(encoding="utf-8")) for path in DOCUMENTS}
    assert [(str(path), link) for path in links for link in links[path] if not (path.parent / link).exists()] == []
    indices = (ROOT / "README.md", ROOT / "docs/adr/README.md")
    listed = {(index.parent / link).resolve() for index in indices for link in links[index]}
    assert [path for path in DOCUMENTS[1:] if path not in listed] == []


def test_every_path_in_the_architecture_exists() -> None:
    paths = re.findall(r"`((?:suite|baselines|conf|docs|tests)(?:/[\w./]*)?)(?:: \w+)?`", ARCHITECTURE + READING)
    assert len(paths) >= 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_hops_of_a_walk_name_existing_functions() -> None:
    for title in WALKS:
        walk = ARCHITECTURE.partition(f"## {title}\n")[2].partition("\n## ")[0]
        hops = re.split(r"^\d+\. ", walk, flags=re.MULTILINE)[1:]
        assert 5 <= len(hops) <= 10, title
        assert [hop for hop in hops if not re.match(r"`suite/[\w/]+\.py: \w+`", hop)] == []
        for file, function in re.findall(r"`([\w/]+\.py): (\w+)`", walk):
            functions = {node.name for node in ast.walk(trees()[file]) if isinstance(node, ast.FunctionDef)}
            assert function in functions, f"{file}: {function}"


def test_concepts_list_every_package() -> None:
    listed = re.findall(r"(?<=  )suite/(\w+)(?= )", (ROOT / "docs/concepts.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(path.parent.name for path in (ROOT / "suite").glob("*/__init__.py"))
