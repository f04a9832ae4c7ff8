"""Image data sets: published layouts, and batches that are equal on every rank.

Ranks draw their own data: two that disagree by one image, or one image seen twice in an epoch, spoil a loss curve
without an error.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import numpy as np
import pytest

from suite.core.errors import InvalidRequest, MissingDependency, UnknownName
from suite.data import images
from suite.data.epochs import order
from suite.data.images import (
    Images,
    ImagesInMemory,
    check_folder,
    check_shape,
    cifar_100,
    digits,
    imagenet,
    tiny_imagenet,
)
from suite.workload import VGG, Transformer
from tests.support.refusals import fault, refused

GREY = VGG((4,), (1,), image=8, colours=1, classes=10)
COLOURED = VGG((4,), (1,), image=32, colours=3, classes=200)


def numbered(count: int, classes: int = 10) -> Images:
    """Images of one pixel; the byte is the image's position."""
    places = np.arange(count)
    numbered_images = ImagesInMemory(places.astype(np.uint8).reshape(-1, 1, 1, 1), places.astype(np.int64) % classes)
    return Images("numbered", classes, numbered_images, numbered_images)


POINT = VGG((4,), (1,), image=2, colours=1, classes=10)


def drawn(data: Images, number: int, size: int, seed: int = 3) -> list[int]:
    images, classes = data.batch(number, size=size, seed=seed, shape=POINT)
    assert images.shape == (size, 1, 2, 2)
    assert images.dtype == np.uint8
    places = images[:, 0, 0, 0].tolist()
    assert classes.tolist() == [place % 10 for place in places], "an image keeps its class"
    return [int(place) for place in places]


def test_epoch_contains_every_image_once_in_a_new_order() -> None:
    data = numbered(15)
    seen = [place for number in range(6) for place in drawn(data, number, 5)]
    assert sorted(seen[:15]) == sorted(seen[15:]) == list(range(15))
    assert seen[:15] != seen[15:] != list(range(15))


def test_a_batch_goes_on_where_the_one_before_ended() -> None:
    data = numbered(15)
    small = [place for number in range(8) for place in drawn(data, number, 4)]
    large = [place for number in range(4) for place in drawn(data, number, 8)]
    assert small == large, "batches of another size, over the end of an epoch, read the same images"
    assert drawn(data, 5, 4) == small[20:24], "in any order"


def test_batches_are_those_of_their_seed_for_ever() -> None:
    assert order(8, 0, 0).tolist() == [1, 4, 5, 6, 2, 0, 3, 7]
    assert drawn(numbered(15), 0, 5, seed=4) != drawn(numbered(15), 0, 5, seed=3)
    with refused(InvalidRequest, "seed", "-1"):
        numbered(3).batch(0, size=1, seed=-1, shape=POINT)


def test_an_epoch_is_as_long_as_it_says() -> None:
    data = digits()
    assert (data.samples, data.held_out) == (1618, 179)
    shape = VGG((4,), (1,), image=8, colours=1, classes=10)
    assert sum(len(classes) for _, classes in data.validation_batches(size=56, shape=shape)) == 168, "three whole ones"
    assert sum(len(classes) for _, classes in data.validation_batches(size=179, shape=shape)) == data.held_out


def test_validation_is_every_whole_batch_in_order() -> None:
    batches = list(numbered(7).validation_batches(size=3, shape=POINT))
    assert [images[:, 0, 0, 0].tolist() for images, _ in batches] == [[0, 1, 2], [3, 4, 5]]
    assert list(numbered(7).validation_batches(size=8, shape=POINT)) == []


def test_digits() -> None:
    data = digits()
    assert (len(data.train.classes), len(data.validation.classes)) == (1797 - 179, 179)
    images, classes = data.batch(0, size=64, seed=0, shape=VGG((4,), (1,), image=16, colours=3, classes=10))
    assert images.shape == (64, 3, 16, 16)
    assert images.min() == 0
    assert images.max() == 255
    assert (images[:, 0] == images[:, 2]).all(), "grey"
    assert (images[:, :, ::2, ::2] == images[:, :, 1::2, 1::2]).all(), "each point four times"
    assert sorted(set(classes.tolist())) == list(range(10))
    provenance = data.provenance()
    assert (provenance["name"], provenance["bytes"]) == ("digits", 1797 * 64)


def test_the_tenth_digit_is_held_out() -> None:
    from sklearn.datasets import load_digits

    raw = load_digits().images
    data = digits()
    pixel = data.validation.images([0], 1, 8)[0, 0]
    assert (pixel == np.rint(raw[9] * 255 / 16)).all()
    assert (data.train.images([9], 1, 8)[0, 0] == np.rint(raw[10] * 255 / 16)).all()


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """Rows of coarse class, fine class, then red, green and blue planes of 1024 bytes."""
    for name, count in (("train.bin", 4), ("test.bin", 2)):
        rows = [
            bytes([place, 90 + place]) + b"".join(bytes([10 * place + c]) * 1024 for c in range(3))
            for place in range(count)
        ]
        (tmp_path / name).write_bytes(b"".join(rows))
    return tmp_path


def test_cifar_100_reads_fine_classes_and_planes(cifar: Path) -> None:
    data = cifar_100(cifar)
    assert data.train.classes.tolist() == [90, 91, 92, 93]
    assert data.validation.classes.tolist() == [90, 91]
    image = data.train.images([2], 3, 64)
    assert image.shape == (1, 3, 64, 64)
    assert [int(image[0, c].min()) for c in range(3)] == [int(image[0, c].max()) for c in range(3)] == [20, 21, 22]
    assert data.provenance()["bytes"] == 6 * 3072
    before = data.provenance()["sha256"]
    (cifar / "test.bin").write_bytes((cifar / "test.bin").read_bytes()[:-1] + b"\x00")
    assert cifar_100(cifar).provenance()["sha256"] != before


def test_a_damaged_cifar_100_is_refused(cifar: Path) -> None:
    whole = (cifar / "test.bin").read_bytes()
    (cifar / "test.bin").write_bytes(whole[:-1])
    with refused(InvalidRequest, subject="6147 bytes", rule="rows of 3074 bytes", legal="3074 bytes"):
        cifar_100(cifar)
    (cifar / "test.bin").write_bytes(b"\x00\xff" + whole[2:])
    with refused(InvalidRequest, subject="class 255", rule="fine classes below 100"):
        cifar_100(cifar)


def photograph(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (64, 64)) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, "JPEG", quality=95)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Two classes, red and blue. Their order in wnids.txt differs from the order of their names."""
    (tmp_path / "wnids.txt").write_text("n02\nn01\n")
    for name, colour in (("n02", (250, 0, 0)), ("n01", (0, 0, 250))):
        for number in range(2):
            photograph(tmp_path / "train" / name / "images" / f"{name}_{number}.JPEG", colour)
        (tmp_path / "train" / name / f"{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t0\t9\t9\n")
    photograph(tmp_path / "val" / "images" / "val_0.JPEG", (0, 0, 250))
    photograph(tmp_path / "val" / "images" / "val_1.JPEG", (250, 0, 0))
    (tmp_path / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn01\t0\t0\t9\t9\nval_1.JPEG\tn02\t0\t0\t9\t9\n")
    return tmp_path


def assert_coloured(image: np.ndarray, colour: tuple[int, int, int]) -> None:
    assert np.abs(image.astype(int) - np.array(colour)[:, None, None]).max() < 12, "as JPEG keeps it"


def test_tiny_imagenet_numbers_classes_as_it_lists_them(tiny: Path) -> None:
    data = tiny_imagenet(tiny)
    assert (data.classes, data.train.classes.tolist(), data.validation.classes.tolist()) == (2, [0, 0, 1, 1], [1, 0])
    ((images, classes),) = data.validation_batches(size=2, shape=COLOURED)
    assert images.shape == (2, 3, 32, 32)
    assert_coloured(images[0], (0, 0, 250))
    assert_coloured(images[1], (250, 0, 0))
    assert classes.tolist() == [1, 0]
    provenance = data.provenance()
    photograph(tiny / "val" / "images" / "val_0.JPEG", (9, 9, 9), (9, 9))
    assert data.provenance()["sha256"] != provenance["sha256"]


def test_tiny_imagenet_is_scaled_to_what_the_network_wants(tiny: Path) -> None:
    """PipeOptim's 224 from 64: nothing is cut away, and colours stay where they were."""
    from PIL import Image

    quarter = Image.new("RGB", (64, 64), (0, 250, 0))
    quarter.paste((250, 0, 0), (0, 0, 16, 64))
    quarter.save(tiny / "val" / "images" / "val_0.JPEG", "JPEG", quality=95)
    image = tiny_imagenet(tiny).validation.images([0], 3, 224)[0]
    assert image.shape == (3, 224, 224)
    assert_coloured(image[:, :, :40], (250, 0, 0))
    assert_coloured(image[:, :, 72:], (0, 250, 0))


def test_nothing_is_unpickled() -> None:
    """Unpickling can run code, and CIFAR-100's Python version is a pickle."""
    text = Path(images.__file__).read_text(encoding="utf-8")
    imported = {name for node in ast.walk(ast.parse(text)) for name in _imported(node)}
    assert imported.isdisjoint({"pickle", "torch", "joblib", "sklearn.datasets"})
    assert "allow_pickle" not in text


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_a_pickled_cifar_100_is_refused(tmp_path: Path) -> None:
    """The version for Python has no train.bin."""
    for name in ("train", "test", "meta"):
        (tmp_path / name).write_bytes(b"\x80\x02}q\x01.")
    with refused(
        InvalidRequest,
        subject="has no train.bin, or an empty one; it holds meta, test, train",
        rule="it holds train.bin, test.bin",
    ):
        cifar_100(tmp_path)


def test_a_validation_class_that_is_not_listed_is_refused(tiny: Path) -> None:
    (tiny / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn77\t0\t0\t9\t9\n")
    with refused(InvalidRequest, subject="class 'n77'", rule="a class of wnids.txt", legal="n02"):
        tiny_imagenet(tiny)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """ImageNet's: photographs of many sizes. The wide one is green in the middle and red at both ends."""
    from PIL import Image

    photograph(tmp_path / "train" / "n01" / "a.JPEG", (0, 0, 250), (50, 90))
    wide = Image.new("RGB", (400, 100), (250, 0, 0))
    wide.paste((0, 250, 0), (140, 0, 260, 100))
    wide.save(tmp_path / "train" / "n01" / "b.JPEG", "JPEG", quality=95)
    photograph(tmp_path / "train" / "n02" / "c.JPEG", (0, 0, 250), (90, 50))
    photograph(tmp_path / "val" / "n02" / "d.JPEG", (0, 0, 250))
    return tmp_path


def test_imagenet_shows_the_middle_of_a_photograph(folders: Path) -> None:
    data = imagenet(folders)
    assert (data.classes, data.train.classes.tolist(), data.validation.classes.tolist()) == (2, [0, 0, 1], [1])
    images = data.train.images([0, 1, 2], 3, 28)
    assert images.shape == (3, 3, 28, 28)
    assert_coloured(images[1], (0, 250, 0))
    grey = data.train.images([1], 1, 28)
    assert grey.shape == (1, 1, 28, 28)


def test_files_without_pillow_say_what_to_install(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependency, match="pip install pillow"):
        imagenet(folders).train.images([0], 3, 28)


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.data.images.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="pip install scikit-learn"):
        digits()


@pytest.mark.parametrize(
    ("name", "missing"), [("cifar_100", "train.bin"), ("tiny_imagenet", "wnids.txt"), ("imagenet", "train")]
)
def test_a_folder_of_another_form_is_refused(tmp_path: Path, name: str, missing: str) -> None:
    with refused(
        InvalidRequest, subject=f"{name}: there is no folder 'None'", legal=f"the folder that holds {missing}"
    ):
        check_folder(name)
    (tmp_path / "photos").mkdir()
    with refused(InvalidRequest, subject=f"has no {missing}, or an empty one; it holds photos"):
        check_folder(name, tmp_path)


def test_published_layouts_are_accepted(cifar: Path) -> None:
    check_folder("digits")
    check_folder("cifar_100", cifar)
    (cifar / "train.bin").write_bytes(b"")
    with refused(
        InvalidRequest,
        subject="has no train.bin, or an empty one; it holds test.bin, train.bin",
        rule="it holds train.bin, test.bin",
    ):
        check_folder("cifar_100", cifar)
    with refused(UnknownName, "data set of images", "imagenot", legal="did you mean 'imagenet'?"):
        check_folder("imagenot", cifar)


def test_photographs_are_where_they_should_be(folders: Path) -> None:
    (folders / "val" / "n02" / "d.JPEG").rename(folders / "val" / "n02" / "d.txt")
    with refused(InvalidRequest, subject="no photographs", rule="at least one in each part"):
        imagenet(folders)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("digits", Transformer(1, 8, 2, 4, 256), fault("data", "digits", rule="images are for")),
        (
            "digits",
            VGG((4,), (1,), image=8, colours=1, classes=9),
            fault("model.shape.classes", "9", rule="data=digits has 10", legal="model.shape.classes=10"),
        ),
        (
            "digits",
            VGG((4,), (1,), image=12, colours=1, classes=10),
            fault("model.shape.image", "12", subject="on digits of 8 x 8", legal="model.shape.image=8"),
        ),
        (
            "digits",
            VGG((4,), (1,), image=4, colours=1, classes=10),
            fault("model.shape.image", "4", legal="model.shape.image=8"),
        ),
        (
            "cifar_100",
            VGG((4,), (1,), image=32, colours=1, classes=100),
            fault("model.shape.colours", "1", subject="on cifar_100 with 3", legal="model.shape.colours=3"),
        ),
        (
            "cifar_100",
            VGG((4,), (1,), image=32, colours=3, classes=10),
            fault("model.shape.classes", rule="cifar_100 has 100 classes"),
        ),
    ],
)
def test_networks_that_cannot_read_them_are_refused(name: str, shape: object, expected: dict[str, object]) -> None:
    with refused(InvalidRequest, **expected):
        check_shape(name, None, shape)


def test_classes_of_folders_are_counted(tiny: Path, folders: Path) -> None:
    for name, folder in (("tiny_imagenet", tiny), ("imagenet", folders)):
        check_shape(name, folder, VGG((4,), (1,), image=28, classes=2))
        with refused(InvalidRequest, "model.shape.classes", "1", rule=f"data={name} has 2 classes"):
            check_shape(name, folder, VGG((4,), (1,), image=28, classes=1))
        with refused(InvalidRequest, "model.shape.colours", "2"):
            check_shape(name, folder, VGG((4,), (1,), image=28, colours=2, classes=2))
    with refused(InvalidRequest, "model.shape.classes", rule="numbered has 10 classes"):
        numbered(5).batch(0, size=1, seed=0, shape=VGG((4,), (1,), image=2, colours=1, classes=3))
    check_shape("digits", None, GREY)
