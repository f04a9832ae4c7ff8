"""Decides what is said of a data set in a folder: how many samples it has on either side, and of how many classes.

    python -m suite.count cifar_100 FOLDER

What a paper says of its data can be counted so, before anything is trained on it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from suite.core.errors import SuiteError, UnknownName
from suite.data import images, sentiment, translation

SOURCES: Mapping[str, Any] = {
    **{name: getattr(images, name) for name in images.LAYOUTS},
    **{name: getattr(sentiment, name) for name in sentiment.LAYOUTS},
    **{name: getattr(translation, name) for name in translation.LAYOUTS},
}


def counts(name: str, folder: str | os.PathLike[str]) -> dict[str, int]:
    """Samples and classes of data set `name`; per class the least and the most. Raises UnknownName, and Refused for a
    folder of another layout."""
    if name not in SOURCES:
        raise UnknownName("data set", name, SOURCES)
    source = SOURCES[name](folder)
    found = {"training samples": source.samples, "validation samples": source.held_out}
    if not hasattr(source, "classes"):
        return found
    found["classes"] = source.classes
    for side, part in (("training", source.train), ("validation", source.validation)):
        held = np.bincount(part.classes, minlength=source.classes)
        found |= {f"{side} samples of the smallest class": int(held.min())}
        found |= {f"{side} samples of the largest class": int(held.max())}
    return found


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        print(f"usage: python -m suite.count {'|'.join(SOURCES)} FOLDER", file=sys.stderr)
        return 2
    try:
        found = counts(*arguments)
    except SuiteError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    for what, number in found.items():
        print(f"{number:>10,}  {what}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
