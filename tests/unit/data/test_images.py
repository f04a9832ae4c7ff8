"""Image data sets in their published layouts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from suite.core.errors import InvalidRequest, MissingDependency
from suite.data.images import check_shape, cifar_100, digits, imagenet, noise, tiny_imagenet
from tests.support.refusals import refused
from tests.unit.data.written import vgg, write

RED, GREEN, BLUE = (250, 0, 0), (0, 250, 0), (0, 0, 250)


def photograph(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (64, 64), painted: Any = None) -> None:
    """A JPEG file of one colour; `painted` is another colour and its box."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, colour)
    if painted:
        image.paste(*painted)
    image.save(path, "JPEG", quality=95)


def assert_coloured(image: np.ndarray, colour: tuple[int, int, int]) -> None:
    assert np.abs(image.astype(int) - np.array(colour)[:, None, None]).max() < 12, "as JPEG keeps it"


def test_digits_are_enlarged_and_the_tenth_is_held_out() -> None:
    data, raw = digits(), load_digits().images
    assert (data.samples, data.held_out) == (1797 - 179, 179)
    assert (data.validation.images([0], 1, 8)[0, 0] == np.rint(raw[9] * 255 / 16)).all()
    assert (data.train.images([9], 1, 8)[0, 0] == np.rint(raw[10] * 255 / 16)).all()
    images, classes = data.batch(0, size=64, seed=0, shape=vgg(16, 3, 10))
    assert (images.shape, images.dtype, images.min(), images.max()) == ((64, 3, 16, 16), np.uint8, 0, 255)
    assert (images[:, 0] == images[:, 2]).all(), "grey"
    assert (images[:, :, ::2, ::2] == images[:, :, 1::2, 1::2]).all(), "each point four times"
    assert sorted(set(classes.tolist())) == list(range(10))
    assert data.provenance()["bytes"] == 1797 * 64


def test_noise_has_any_size_and_depends_on_its_place_alone() -> None:
    (images, classes), (again, _) = (noise().batch(3, size=4, seed=7, shape=vgg(40, 3, 12)) for _ in range(2))
    assert (images.shape, images.dtype, classes.max() < 10) == ((4, 3, 40, 40), np.uint8, True)
    assert (images == again).all()
    assert not (images[0] == images[1]).all()
    assert 120 < images.mean() < 135


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """Rows of coarse class, fine class, then red, green and blue planes of 1024 bytes."""
    rows = [
        bytes([place, 90 + place]) + b"".join(bytes([10 * place + colour]) * 1024 for colour in range(3))
        for place in range(4)
    ]
    return write(tmp_path, {"train.bin": b"".join(rows), "test.bin": b"".join(rows[:2])})


def test_cifar_100_reads_fine_classes_and_planes(cifar: Path) -> None:
    data = cifar_100(cifar)
    assert data.train.classes.tolist() == [90, 91, 92, 93]
    assert data.validation.classes.tolist() == [90, 91]
    image = data.train.images([2], 3, 64)
    assert image.shape == (1, 3, 64, 64)
    assert [int(image[0, c].min()) for c in range(3)] == [int(image[0, c].max()) for c in range(3)] == [20, 21, 22]
    assert data.provenance()["bytes"] == 6 * 3072


def test_a_damaged_cifar_100_is_refused(cifar: Path) -> None:
    whole = (cifar / "test.bin").read_bytes()
    for damaged, subject in (
        (whole[:-1], "6147 bytes"),
        (b"\x00\x64" + whole[2:], "class 100"),
        (b"", "test.bin, or an empty one"),
    ):
        (cifar / "test.bin").write_bytes(damaged)
        with refused(InvalidRequest, subject=subject):
            cifar_100(cifar)
    (cifar / "train.bin").rename(cifar / "train")  # the pickled version for Python has no train.bin
    with refused(InvalidRequest, subject="train.bin"):
        cifar_100(cifar)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Two classes, red and blue. Their order in wnids.txt differs from the order of their names."""
    write(tmp_path, {"wnids.txt": "n02\nn01\n"})
    for name, colour in (("n02", RED), ("n01", BLUE)):
        for number in range(2):
            photograph(tmp_path / "train" / name / "images" / f"{name}_{number}.JPEG", colour)
        write(tmp_path, {f"train/{name}/{name}_boxes.txt": f"{name}_0.JPEG\t0\t0\t9\t9\n"})
    photograph(tmp_path / "val" / "images" / "val_0.JPEG", BLUE)
    photograph(tmp_path / "val" / "images" / "val_1.JPEG", RED)
    rows = "val_0.JPEG\tn01\t0\t0\t9\t9\nval_1.JPEG\tn02\t0\t0\t9\t9\n"
    return write(tmp_path, {"val/val_annotations.txt": rows})


def test_tiny_imagenet_numbers_classes_as_it_lists_them(tiny: Path) -> None:
    data = tiny_imagenet(tiny)
    assert (data.needs["classes"], data.train.classes.tolist(), data.validation.classes.tolist()) == (
        2,
        [0, 0, 1, 1],
        [1, 0],
    )
    ((images, classes),) = data.validation_batches(size=2, shape=vgg(32, 3, 200))
    assert images.shape == (2, 3, 32, 32)
    assert_coloured(images[0], BLUE)
    assert_coloured(images[1], RED)
    assert classes.tolist() == [1, 0]
    write(tiny, {"val/val_annotations.txt": "val_0.JPEG\tn77\t0\t0\t9\t9\n"})
    with refused(InvalidRequest, subject="class n77", legal="n02"):
        tiny_imagenet(tiny)


@pytest.mark.parametrize("content", [b"", b"no photograph", b"\xff\xd8\xff\xe0"])
def test_damaged_photograph_is_named(content: bytes, tiny: Path) -> None:
    write(tiny, {"val/images/val_1.JPEG": content})
    with refused(InvalidRequest, subject="val_1.JPEG"):
        list(tiny_imagenet(tiny).validation_batches(size=2, shape=vgg(32, 3, 200)))


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """ImageNet's: photographs of many sizes. The wide one is green in the middle and red at both ends."""
    photograph(tmp_path / "train" / "n01" / "a.JPEG", BLUE, (50, 90))
    photograph(tmp_path / "train" / "n01" / "b.JPEG", RED, (400, 100), painted=(GREEN, (140, 0, 260, 100)))
    photograph(tmp_path / "train" / "n02" / "c.JPEG", BLUE, (90, 50))
    photograph(tmp_path / "val" / "n02" / "d.JPEG", BLUE)
    return tmp_path


def test_imagenet_shows_the_middle_of_a_photograph(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = imagenet(folders)
    assert (data.needs["classes"], data.train.classes.tolist(), data.validation.classes.tolist()) == (2, [0, 0, 1], [1])
    images = data.train.images([0, 1, 2], 3, 28)
    assert images.shape == (3, 3, 28, 28)
    assert_coloured(images[1], GREEN)
    (folders / "val" / "n02" / "d.JPEG").rename(folders / "val" / "n02" / "d.txt")
    with refused(InvalidRequest, subject="no photographs"):
        imagenet(folders)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependency, match="pip install pillow"):
        data.train.images([0], 3, 28)
    monkeypatch.setattr("suite.data.images.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="pip install scikit-learn"):
        digits()


def test_classes_of_folders_are_counted(tiny: Path, folders: Path) -> None:
    for name, folder in (("tiny_imagenet", tiny), ("imagenet", folders)):
        check_shape(name, folder, vgg(28, 3, 2))
        check_shape(name, folder, vgg(28, 1, 2))
        with refused(InvalidRequest, "model.shape.classes", 1, rule="2"):
            check_shape(name, folder, vgg(28, 3, 1))
        with refused(InvalidRequest, "model.shape.colours", "2"):
            check_shape(name, folder, vgg(28, 2, 2))
