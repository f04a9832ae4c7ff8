"""Small folders of files in a published form, and small networks that read them."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path

from suite.models.image_shapes import VGG
from suite.workload.recurrent import ResidualLSTM


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write the files, by their path under `folder`; text that ends in .gz is compressed. Returns `folder`."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") and isinstance(content, str) else data)
    return folder


def vgg(image: int, colours: int, classes: int) -> VGG:
    """A network of one convolution."""
    return VGG((4,), (1,), image=image, colours=colours, classes=classes)


def lstm(sequence: int = 4, vocabulary: int = 3, classes: int = 8) -> ResidualLSTM:
    """A network of one layer."""
    return ResidualLSTM(1, 2, 2, sequence=sequence, vocabulary=vocabulary, classes=classes)
