"""Image data sets as bytes, in an order determined by seed and batch number.

The default data set is scikit-learn's handwritten digits, 8 x 8 and grey. Noise has any size, for runs that measure
time or memory. CIFAR-100 (binary version), Tiny-ImageNet and ImageNet load from their published folders. JPEG files are
decoded when a batch needs them. Nothing is unpickled. Images are adapted to the side that a network reads: arrays are
repeated a whole number of times, photographs are resized and cropped. Grey images are repeated over the colours.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suite.core.errors import InvalidRequest, MissingDependency, refuse
from suite.data.reading import check_folder, published, text_of
from suite.data.samples import Samples, check_network

__all__ = ["check_folder", "check_shape", "cifar_100", "digits", "imagenet", "noise", "tiny_imagenet"]

Bytes = NDArray[np.uint8]
Batch = tuple[Bytes, NDArray[np.int64]]  # images [batch, colours, side, side], classes [batch]

DIGITS, DIGITS_SIDE, HELD_OUT = 10, 8, 10  # classes; every tenth digit is validation
DIGITS_FILE = Path("datasets", "data", "digits.csv.gz")  # in scikit-learn's own folder
CIFAR_SIDE, CIFAR_CLASSES = 32, 100
CLASSES = {"digits": DIGITS, "noise": DIGITS, "cifar_100": CIFAR_CLASSES}
SIDES = {"digits": (1, DIGITS_SIDE), "cifar_100": (3, CIFAR_SIDE)}  # colours and pixels of images as arrays
NOISE = 1024  # images
CIFAR_LABELS = 2  # bytes before an image: its coarse and its fine class
CROP = 224 / 256  # share of an ImageNet photograph's shorter side that is seen, as torchvision evaluates


@dataclass(frozen=True, slots=True, eq=False)
class ImageSet:
    """Training or validation images. `classes` has one entry per image."""

    classes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.classes)

    def batch(self, places: Sequence[int], shape: Any) -> Batch:
        return self.images(places, shape.colours, shape.image), self.classes[list(places)]

    def images(self, places: Sequence[int], colours: int, side: int) -> Bytes:
        """Images at `places`, shape (n, colours, side, side)."""
        raise NotImplementedError

    def update(self, digest: Any) -> int:
        """Update a hash with the bytes of the images."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class ImagesInMemory(ImageSet):
    """Images in memory, shape (n, colours, side, side)."""

    pixels: Bytes

    def images(self, places: Sequence[int], colours: int, side: int) -> Bytes:
        chosen = self.pixels[list(places)]
        times = _times("images", chosen.shape[1], chosen.shape[2], colours, side)
        return chosen.repeat(colours // chosen.shape[1], axis=1).repeat(times, axis=2).repeat(times, axis=3)

    def update(self, digest: Any) -> int:
        for array in (self.pixels, self.classes):
            digest.update(np.ascontiguousarray(array).data)
        return self.pixels.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class RandomImages(ImageSet):
    """Images of random bytes; the place of an image in its epoch seeds them."""

    def images(self, places: Sequence[int], colours: int, side: int) -> Bytes:
        sizes = colours, side, side
        return np.stack([np.random.default_rng(place).integers(256, size=sizes, dtype=np.uint8) for place in places])

    def update(self, digest: Any) -> int:
        digest.update(self.classes.data)
        return 0


@dataclass(frozen=True, slots=True, eq=False)
class ImageFiles(ImageSet):
    """Photographs on disk, decoded on request.

    Attributes:
        crop: Visible share of the shorter side; the crop is centred.
    """

    root: Path
    names: Sequence[str]
    crop: float = 1.0

    def images(self, places: Sequence[int], colours: int, side: int) -> Bytes:
        return np.stack([_decoded(self.root / self.names[place], side, self.crop, colours) for place in places])

    def update(self, digest: Any) -> int:
        total = 0
        for name, label in zip(self.names, self.classes, strict=True):
            size = (self.root / name).stat().st_size
            digest.update(f"{name} {label} {size}\n".encode())
            total += size
        return total


def digits() -> Samples:
    """1797 handwritten digits of 8 x 8 pixels; every tenth digit is validation.

    Raises MissingDependency without scikit-learn. The file is read directly, because importing scikit-learn would take
    seconds on every rank.
    """
    sklearn_spec = find_spec("sklearn")
    folders = [Path(folder) for folder in (sklearn_spec and sklearn_spec.submodule_search_locations) or ()]
    table = next((path for folder in folders if (path := folder / DIGITS_FILE).is_file()), None)
    if table is None:
        raise MissingDependency("scikit-learn", "pip install scikit-learn to use data=digits")
    rows = np.loadtxt(table, delimiter=",")  # 64 points from 0 to 16, and the class
    pixels = np.rint(rows[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 1, DIGITS_SIDE, DIGITS_SIDE)
    classes = rows[:, -1].astype(np.int64)
    held_out = np.arange(len(pixels)) % HELD_OUT == HELD_OUT - 1
    train, validation = (ImagesInMemory(classes[chosen], pixels[chosen]) for chosen in (~held_out, held_out))
    return Samples("digits", train, validation, "images", {"classes": DIGITS})


def noise() -> Samples:
    """Random images of any size in ten classes; as many for training as for validation, and the same."""
    images = RandomImages(np.arange(NOISE) % DIGITS)
    return Samples("noise", images, images, "images", {"classes": DIGITS})


def cifar_100(folder: str | os.PathLike[str]) -> Samples:
    """CIFAR-100 in its binary version: rows of coarse class, fine class and 3 x 32 x 32 bytes. The fine class
    counts."""
    train, validation = (_cifar(path) for path in published("cifar_100", folder))
    return Samples("cifar_100", train, validation, "images", {"classes": CIFAR_CLASSES})


def tiny_imagenet(folder: str | os.PathLike[str]) -> Samples:
    """Tiny-ImageNet-200: train/CLASS/images/*.JPEG, and val/images with classes in val_annotations.txt."""
    listed, train, images, annotations = published("tiny_imagenet", folder)
    names = text_of(listed).split()
    number = {name: place for place, name in enumerate(names)}
    rows = [line.split("\t")[:2] for line in text_of(annotations).splitlines() if line.strip()]
    strange = sorted({row[-1] for row in rows if row[-1] not in number})
    refuse([(strange, f"{annotations}: class {''.join(strange[:1])}", "a class of wnids.txt", names[0])])
    photographs = [(number[name], path) for name in names for path in _photographs(train / name / "images")]
    held_out = [(number[name], images / photograph) for photograph, name in rows]
    needs = {"classes": len(names)}
    return Samples("tiny_imagenet", _files(folder, photographs), _files(folder, held_out), "images", needs)


def imagenet(folder: str | os.PathLike[str]) -> Samples:
    """ImageNet folders: train/CLASS/*.JPEG and val/CLASS/*.JPEG. Classes are numbered in the order of their names."""
    train, validation = published("imagenet", folder)
    names = _class_names(train)
    parts = (
        [(place, path) for place, name in enumerate(names) for path in _photographs(part / name)]
        for part in (train, validation)
    )
    learned, held_out = (_files(folder, part, crop=CROP) for part in parts)
    return Samples("imagenet", learned, held_out, "images", {"classes": len(names)})


def check_shape(name: str, folder: str | os.PathLike[str] | None, shape: Any) -> None:
    """Raise InvalidRequest for a network of text, of fewer classes, or of an illegal side."""
    check_network(name, shape, "images")
    if name in SIDES:
        _times(name, *SIDES[name], shape.colours, shape.image)
    if name in CLASSES:
        check_network(name, shape, "images", classes=CLASSES[name])
        return
    first, *_ = published(name, folder)
    names = text_of(first).split() if first.is_file() else _class_names(first)
    check_network(name, shape, "images", classes=len(names))
    rule = "1 for grey, or 3 for red, green and blue"
    refuse([(shape.colours not in (1, 3), f"model.shape.colours={shape.colours}", rule)])


def _times(name: str, has: int, own: int, colours: int, side: int) -> int:
    """Number of repetitions of each pixel that makes an image of `own` x `own` pixels one of `side` x `side`."""
    whole = side >= own and side % own == 0
    legal = f"model.shape.image={max(1, side // own) * own}"
    what = f"model.shape.colours={colours} on {name} with {has}"
    refuse(
        [
            (not whole, f"model.shape.image={side} on {name} of {own} x {own}", "a whole multiple", legal),
            (has not in (1, colours), what, "as many", f"model.shape.colours={has}"),
        ]
    )
    return side // own


def _cifar(path: Path) -> ImagesInMemory:
    row, size = CIFAR_LABELS + 3 * CIFAR_SIDE**2, path.stat().st_size
    refuse([(size % row, f"{path}: {size} bytes", f"rows of {row} bytes")])
    rows = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, row)  # a rank reads only what its batches need
    classes = rows[:, 1].astype(np.int64)
    over = classes.max() >= CIFAR_CLASSES
    refuse([(over, f"{path}: class {classes.max()}", f"fine classes of CIFAR-100, below {CIFAR_CLASSES}")])
    return ImagesInMemory(classes, rows[:, CIFAR_LABELS:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE))


def _decoded(path: Path, side: int, crop: float, colours: int) -> Bytes:
    """A photograph of shape (colours, side, side): its shorter side is resized to side / crop, then the centre is
    cropped."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependency("pillow", "pip install pillow to decode JPEG files") from error
    try:
        with Image.open(path) as photograph:
            plain = photograph.convert("RGB" if colours == 3 else "L")
    except OSError as error:
        raise InvalidRequest(f"{path}: {error}", rule="a whole JPEG file") from error
    target = round(side / crop)
    scale = target / min(plain.size)
    sizes = [max(target, round(length * scale)) for length in plain.size]
    if tuple(sizes) != plain.size:
        plain = plain.resize((sizes[0], sizes[1]), Image.Resampling.BILINEAR)
    x0, top = ((length - side) // 2 for length in sizes)
    pixels = np.asarray(plain.crop((x0, top, x0 + side, top + side)), dtype=np.uint8)
    return np.ascontiguousarray(pixels.reshape(side, side, colours).transpose(2, 0, 1))


def _files(folder: str | os.PathLike[str], photographs: Sequence[tuple[int, Path]], *, crop: float = 1.0) -> ImageFiles:
    """The part of a data set that consists of these classes and files."""
    refuse([(not photographs, f"no photographs in {folder}", "at least one *.JPEG in each part")])
    classes, paths = zip(*photographs, strict=True)
    names = [path.relative_to(folder).as_posix() for path in paths]
    return ImageFiles(np.array(classes, np.int64), Path(folder), names, crop)


def _photographs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.suffix.lower() in (".jpeg", ".jpg"))


def _class_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())
