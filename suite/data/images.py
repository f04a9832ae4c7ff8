"""Image data sets as bytes, in an order determined by seed and batch number.

The default data set is scikit-learn's handwritten digits, 8 x 8 and grey. Noise has any size, for runs that measure
time or memory. CIFAR-100 (binary version), Tiny-ImageNet and ImageNet load from their published folders. JPEG files are
decoded when a batch needs them. Nothing is unpickled. Images are adapted to the side that a network reads: arrays are
repeated a whole number of times, photographs are resized and cropped. Grey images are repeated over the colours.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from suite.core.errors import InvalidRequest, MissingDependency, UnknownName
from suite.core.protocols import DataSource
from suite.data.epochs import places
from suite.data.reading import located, text_of

Bytes = NDArray[np.uint8]
Batch = tuple[Bytes, NDArray[np.int64]]  # images [batch, colours, side, side], classes [batch]

DIGITS, DIGITS_SIDE, HELD_OUT = 10, 8, 10  # classes; every tenth digit is validation
DIGITS_FILE = Path("datasets", "data", "digits.csv.gz")  # in scikit-learn's own folder
CIFAR_SIDE, CIFAR_CLASSES = 32, 100
NOISE = 1024  # images
CIFAR_LABELS = 2  # bytes before an image: its coarse and its fine class
CROP = 224 / 256  # share of an ImageNet photograph's shorter side that is seen, as torchvision evaluates
LAYOUTS: dict[str, tuple[str, ...]] = {
    "cifar_100": ("train.bin", "test.bin"),
    "tiny_imagenet": ("wnids.txt", "train", "val/images", "val/val_annotations.txt"),
    "imagenet": ("train", "val"),
}


class ImageSet(Protocol):
    """Training or validation images. `classes` has one entry per image, each below Images.classes."""

    @property
    def classes(self) -> NDArray[np.int64]: ...

    def images(self, places: Sequence[int], colours: int, side: int) -> Bytes:
        """Images at `places`, shape (n, colours, side, side)."""

    def update(self, digest: Any) -> int:
        """Update a hash with the bytes of the images."""


@dataclass(frozen=True, slots=True, eq=False)
class Images(DataSource):
    """One data set; `classes` is the number of its classes."""

    name: str
    classes: int
    train: ImageSet
    validation: ImageSet

    @property
    def samples(self) -> int:
        """Images of one epoch. Batches continue over the end of an epoch, so no image is left out."""
        return len(self.train.classes)

    @property
    def held_out(self) -> int:
        """Number of validation images. A last batch that is not full is left out."""
        return len(self.validation.classes)

    def batch(self, number: int, *, size: int, seed: int, shape: Any) -> Batch:
        """Batch `number` of a training run.

        An epoch contains every image once, in an order drawn from (seed, epoch). A batch continues where the one
        before it ended. Raises InvalidRequest for a network without these classes.
        """
        return self._cut(self.train, places(self.samples, number, size=size, seed=seed), shape)

    def validation_batches(self, *, size: int, shape: Any) -> Iterator[Batch]:
        """Every full batch of validation images, in order."""
        for start in range(0, len(self.validation.classes) - size + 1, size):
            yield self._cut(self.validation, range(start, start + size), shape)

    def provenance(self) -> dict[str, str | int]:
        """Name, bytes and SHA-256, training before validation. For files, the hash covers names and sizes."""
        digest = hashlib.sha256()
        size = sum(part.update(digest) for part in (self.train, self.validation))
        return {"name": self.name, "bytes": size, "sha256": digest.hexdigest()}

    def _cut(self, part: ImageSet, places: Sequence[int], shape: Any) -> Batch:
        _check_classes(self.name, self.classes, shape)
        return part.images(places, shape.colours, shape.image), part.classes[list(places)]


@dataclass(frozen=True, slots=True, eq=False)
class ImagesInMemory:
    """Images in memory, shape (n, colours, side, side)."""

    pixels: Bytes
    classes: NDArray[np.int64]

    def images(self, places: Sequence[int], colours: int, side: int) -> Bytes:
        chosen = self.pixels[list(places)]
        times = _times("images", chosen.shape[1], chosen.shape[2], colours, side)
        return chosen.repeat(colours // chosen.shape[1], axis=1).repeat(times, axis=2).repeat(times, axis=3)

    def update(self, digest: Any) -> int:
        for array in (self.pixels, self.classes):
            digest.update(np.ascontiguousarray(array).data)
        return self.pixels.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class RandomImages:
    """Images of random bytes; the place of an image in its epoch seeds them."""

    classes: NDArray[np.int64]

    def images(self, places: Sequence[int], colours: int, side: int) -> Bytes:
        sizes = colours, side, side
        return np.stack([np.random.default_rng(place).integers(256, size=sizes, dtype=np.uint8) for place in places])

    def update(self, digest: Any) -> int:
        digest.update(self.classes.data)
        return 0


@dataclass(frozen=True, slots=True, eq=False)
class ImageFiles:
    """Photographs on disk, decoded on request.

    Attributes:
        crop: Visible share of the shorter side; the crop is centred.
    """

    root: Path
    names: Sequence[str]
    classes: NDArray[np.int64]
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


def digits() -> Images:
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
    train, validation = (ImagesInMemory(pixels[chosen], classes[chosen]) for chosen in (~held_out, held_out))
    return Images("digits", DIGITS, train, validation)


def noise() -> Images:
    """Random images of any size in ten classes; as many for training as for validation, and the same."""
    images = RandomImages(np.arange(NOISE) % DIGITS)
    return Images("noise", DIGITS, images, images)


def cifar_100(folder: str | os.PathLike[str]) -> Images:
    """CIFAR-100 in its binary version: rows of coarse class, fine class and 3 x 32 x 32 bytes. The fine class
    counts."""
    train, validation = (_cifar(path) for path in _paths("cifar_100", folder))
    return Images("cifar_100", CIFAR_CLASSES, train, validation)


def tiny_imagenet(folder: str | os.PathLike[str]) -> Images:
    """Tiny-ImageNet-200: train/CLASS/images/*.JPEG, and val/images with classes in val_annotations.txt."""
    listed, train, images, annotations = _paths("tiny_imagenet", folder)
    names = text_of(listed).split()
    number = {name: place for place, name in enumerate(names)}
    photographs = [(name, path) for name in names for path in _photographs(train / name / "images")]
    rows = [line.split("\t")[:2] for line in text_of(annotations).splitlines() if line.strip()]
    strange = sorted({row[-1] for row in rows if row[-1] not in number})
    if strange:
        raise InvalidRequest(f"{annotations}: class {strange[0]!r}", rule="a class of wnids.txt", legal=names[0])
    root = Path(folder)
    return Images(
        "tiny_imagenet",
        len(names),
        _files(root, [path for _, path in photographs], [number[name] for name, _ in photographs]),
        _files(root, [images / row[0] for row in rows], [number[row[1]] for row in rows]),
    )


def imagenet(folder: str | os.PathLike[str]) -> Images:
    """ImageNet folders: train/CLASS/*.JPEG and val/CLASS/*.JPEG. Classes are numbered in the order of their names."""
    train, validation = _paths("imagenet", folder)
    names = _class_names(train)
    parts = []
    for part in (train, validation):
        photographs = [(place, path) for place, name in enumerate(names) for path in _photographs(part / name)]
        parts.append(
            _files(Path(folder), [path for _, path in photographs], [place for place, _ in photographs], crop=CROP)
        )
    return Images("imagenet", len(names), parts[0], parts[1])


def check_folder(name: str, folder: str | os.PathLike[str] | None = None) -> None:
    """Raise InvalidRequest if files of the data set are missing, without reading them."""
    if name not in ("digits", "noise"):
        _paths(name, folder)


def check_shape(name: str, folder: str | os.PathLike[str] | None, shape: Any) -> None:
    """Raise InvalidRequest for a network of text, of fewer classes, or of an illegal side."""
    if shape.content != "images":
        kind = type(shape).__name__
        raise InvalidRequest(
            f"data={name} with a {kind}", rule="images are for a network of images", legal="model=vgg_narrow"
        )
    if name == "noise":
        _check_classes(name, DIGITS, shape)
    elif name == "digits":
        _check_classes(name, DIGITS, shape)
        _times(name, 1, DIGITS_SIDE, shape.colours, shape.image)
    elif name == "cifar_100":
        _check_classes(name, CIFAR_CLASSES, shape)
        _times(name, 3, CIFAR_SIDE, shape.colours, shape.image)
    else:
        paths = _paths(name, folder)
        listed = text_of(paths[0]).split() if name == "tiny_imagenet" else _class_names(paths[0])
        _check_classes(name, len(listed), shape)
        if shape.colours not in (1, 3):
            raise InvalidRequest(f"model.shape.colours={shape.colours}", rule="grey or red, green and blue", legal="3")


def _check_classes(name: str, classes: int, shape: Any) -> None:
    if shape.classes < classes:
        rule = f"data={name} has {classes} classes"
        raise InvalidRequest(f"model.shape.classes={shape.classes}", rule=rule, legal=f"model.shape.classes={classes}")


def _times(name: str, has: int, own: int, colours: int, side: int) -> int:
    """Number of repetitions of each pixel that makes an image of `own` x `own` pixels one of `side` x `side`."""
    if side < own or side % own:
        legal = f"model.shape.image={max(1, side // own) * own}"
        raise InvalidRequest(
            f"model.shape.image={side} on {name} of {own} x {own}", rule="a whole multiple", legal=legal
        )
    if has not in (1, colours):
        legal = f"model.shape.colours={has}"
        raise InvalidRequest(f"model.shape.colours={colours} on {name} with {has}", rule="as many", legal=legal)
    return side // own


def _cifar(path: Path) -> ImagesInMemory:
    row = CIFAR_LABELS + 3 * CIFAR_SIDE**2
    size = path.stat().st_size
    if size % row:
        raise InvalidRequest(f"{path}: {size} bytes", rule=f"rows of {row} bytes", legal=f"{size // row * row} bytes")
    rows = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, row)  # a rank reads only what its batches need
    classes = rows[:, 1].astype(np.int64)
    if classes.max() >= CIFAR_CLASSES:
        raise InvalidRequest(
            f"{path}: class {classes.max()}", rule=f"fine classes below {CIFAR_CLASSES}", legal="CIFAR-100"
        )
    return ImagesInMemory(rows[:, CIFAR_LABELS:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE), classes)


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


def _files(root: Path, paths: Sequence[Path], classes: Sequence[int], *, crop: float = 1.0) -> ImageFiles:
    if not paths:
        raise InvalidRequest(
            f"no photographs in {root}", rule="at least one in each part", legal="*.JPEG in a class's folder"
        )
    return ImageFiles(root, [path.relative_to(root).as_posix() for path in paths], np.array(classes, np.int64), crop)


def _photographs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.suffix.lower() in (".jpeg", ".jpg"))


def _class_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def _paths(name: str, folder: str | os.PathLike[str] | None) -> list[Path]:
    """Files of a published layout. Raises InvalidRequest with the existing files instead."""
    if name not in LAYOUTS:
        raise UnknownName("data set of images", name, ["digits", "noise", *LAYOUTS])
    return located(name, folder, LAYOUTS[name])
