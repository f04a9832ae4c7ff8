"""Command `suite dataset-info`: count the samples and classes of a data set in a folder.

    suite dataset-info cifar_100 FOLDER

The counts verify the statements of a paper about its data, without training.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from suite.cli import Arguments, argument, command
from suite.core.errors import UnknownName
from suite.core.exit_codes import Exit


def sources() -> Mapping[str, Any]:
    """The class of each data set, by name."""
    from suite.data import images, labelled_text, translation
    from suite.data.reading import LAYOUTS

    parts = (images, labelled_text, translation)
    return {name: vars(part)[name] for part in parts for name in LAYOUTS if name in vars(part)}


def counts(name: str, folder: str | os.PathLike[str]) -> dict[str, int]:
    """Numbers of samples and classes of a data set, and the sizes of its smallest and largest class.

    Raises UnknownName for the name, and InvalidRequest for a folder with another layout.
    """
    import numpy as np

    from suite.data import translation

    all_sources = sources()
    if name not in all_sources:
        raise UnknownName("data set", name, all_sources)
    source = all_sources[name](folder)
    counts_by_name = {"training samples": source.samples, "validation samples": source.held_out}
    if isinstance(source, translation.Translation):
        return counts_by_name
    counts_by_name["classes"] = classes = source.needs["classes"]
    for side, part in (("training", source.train), ("validation", source.validation)):
        class_sizes = np.bincount(part.classes, minlength=classes)
        counts_by_name |= {f"{side} samples of the smallest class": int(class_sizes.min())}
        counts_by_name |= {f"{side} samples of the largest class": int(class_sizes.max())}
    return counts_by_name


@command(
    "Count the samples and classes of a data set.",
    "cifar_100 FOLDER",
    argument("name", metavar="DATASET", help="a class of suite.data that reads a folder, such as cifar_100"),
    argument("folder", metavar="FOLDER", help="folder of its files in the published layout"),
)
def main(arguments: Arguments) -> int:
    for name, number in counts(arguments.name, arguments.folder).items():
        print(f"{number:>10,}  {name}")
    return Exit.OK
