"""Reduce the markup of an SVG to the parts that a browser needs.

The SVG of a plotting library is meant for editing: it has a group and an id for every tick, six decimals, and a list of
fonts for every word. Hundreds of pictures share one page, so all of this is removed. Coordinates are rounded to a
tenth of a point, which is below the resolution of most screens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

INK = "#010203"  # stands for currentColor until the picture is rewritten
NAMED = re.compile(r"(?:ours|paper|null|calibrated)-[0-9-]+")  # ids from the code of a plot, for debugging
_DIGITS = 1  # after the point, of coordinates in points
_NUMBER = re.compile(r"-?[0-9]*\.[0-9]+")
_TO_ID = re.compile(r"url\(#([^)]*)\)")
_WORD, _LINE = "font-size:9.5px;text-anchor:{};fill:currentColor", "fill:none;stroke:currentColor;"
_STYLES = {  # class by the style that most elements of all pictures have
    _LINE + "stroke-opacity:0.13;stroke-width:0.6;stroke-linecap:round": "pg",
    _LINE + "stroke-width:0.7;stroke-linejoin:miter;stroke-linecap:square": "pa",
    _WORD.format("middle"): "pm",
    _WORD.format("end"): "pe",
}
SHEET = "\n".join(f".{name} {{ {style}; }}" for style, name in _STYLES.items())  # of the page that holds the pictures
_SHAPED = frozenset(("d", "x", "y", "width", "height", "transform"))
_FONT = re.compile(r"font-family: [^;]*;? ?")


def lean(root: Any, salt: str) -> None:
    """Rewrite the tree of one picture in place. salt: what its ids start with, so that many share one page."""
    references = [name for element in root.iter() for name in _asked(element)]
    names = {name: f"{salt}-{number}" for number, name in enumerate(dict.fromkeys(references))}
    _rewrite(root, salt, names)
    _share_markers(root)


def _share_markers(root: Any) -> None:
    """Keep one of the equal shapes that markers of several curves use."""
    first: dict[str, str] = {}
    same: dict[str, str] = {}
    for parent in list(root.iter()):
        for defs in [child for child in parent if child.tag == "defs" and len(child) == 1 and child[0].tag == "path"]:
            shape = defs[0].attrib
            name = shape.get("id", "")
            kept = first.setdefault(str(sorted(item for item in shape.items() if item[0] != "id")), name)
            if kept != name:
                same[f"#{name}"] = f"#{kept}"
                parent.remove(defs)
    for element in root.iter("use"):
        element.attrib["href"] = same.get(element.attrib["href"], element.attrib["href"])


def _asked(element: Any) -> Iterator[str]:
    """The ids that an element draws on."""
    for name, value in element.attrib.items():
        if name.endswith("href"):
            yield value[1:]
        else:
            yield from _TO_ID.findall(value)


def _rewrite(element: Any, salt: str, names: dict[str, str]) -> None:
    element.tag = element.tag.rpartition("}")[2]  # inside HTML the svg namespace is implied
    element.attrib = dict(_attributes(element, salt, names))
    if element.tag != "text":
        element.text = None
    children = []
    for child in element:
        if child.tag.endswith(("}metadata", "}style")):
            continue
        _rewrite(child, salt, names)
        child.tail = None
        if child.tag == "g" and not child.attrib:
            children += child
        elif child.tag == "defs" and not len(child):
            continue
        elif child.attrib.get("style") != "fill:none":  # neither filled nor stroked
            children.append(child)
    styles = {child.attrib.get("style") for child in children}
    if element.tag == "g" and len(children) > 1 and len(styles) == 1 and (style := styles.pop()) is not None:
        for child in children:
            del child.attrib["style"]
        element.attrib["style"] = style
    element[:] = children


def _attributes(element: Any, salt: str, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    for long, value in element.attrib.items():
        name, text = long.rpartition("}")[2], value.replace(INK, "currentColor")
        if name == "id":
            if text in names:
                yield name, names[text]
            elif NAMED.fullmatch(text):
                yield name, f"{salt}-{text}"
        elif name == "href":
            yield name, f"#{names[text[1:]]}"
        elif name == "style":
            style = _FONT.sub("", text).replace("; ", ";").replace(": ", ":").rstrip(";")
            yield ("class", _STYLES[style]) if style in _STYLES else (name, style)
        elif name in _SHAPED:
            text = _NUMBER.sub(_short, text)
            if name == "d":
                for tight, wide in (("M", "M "), ("L", " L "), ("C", " C "), ("z", " z")):
                    text = text.replace("  ", " ").replace(wide, tight)
                text = text.strip()
            if not text.startswith("rotate(-0 "):
                yield name, text
        else:
            yield name, _TO_ID.sub(lambda found: f"url(#{names[found[1]]})", text)


def _short(found: re.Match[str]) -> str:
    text = f"{float(found[0]):.{_DIGITS}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
