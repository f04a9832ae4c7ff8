"""A page of the report as a browser parses it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path


def site(pages: Path | Mapping[str, str]) -> str:
    """The pages of a site as one, the front page first, of a written front page or of pages that were rendered."""
    if isinstance(pages, Path):
        files = [pages, *sorted(path for path in pages.parent.glob("*.html") if path != pages)]
        pages = {path.name: path.read_text(encoding="utf-8") for path in files}
    whole = "".join(text for name, text in pages.items() if name.endswith(".html"))
    return re.sub(r' href="[\w-]+\.html#', ' href="#', whole)


class Page(HTMLParser):
    """Tags with their attributes, texts, scripts, and headings of the third and fourth level."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.headings: list[str] = [""]
        self.inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        if tag in {"h3", "h4"}:
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""
        if tag in {"h3", "h4"}:
            self.headings.append("")

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts.append(data)
        elif self.inside != "style":
            self.texts.append(data)
            self.headings[-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Attributes of every tag of a kind."""
        return [attributes for name, attributes in self.tags if name == tag]

    def values(self, tag: str, attribute: str) -> list[str]:
        """Values of an attribute of the tags of a kind that have it."""
        return [attributes[attribute] or "" for attributes in self.all(tag) if attribute in attributes]

    def words(self, between: str = "") -> str:
        """The text with single spaces; `between` separates the texts of neighbouring tags."""
        return " ".join(between.join(self.texts).split())
