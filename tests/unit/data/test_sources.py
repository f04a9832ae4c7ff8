"""Batches of finite data sets, which are equal on every rank, and batches drawn ahead or when they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suite.core.errors import InvalidRequest, UnknownName
from suite.data import batches, labelled_text, text, translation
from suite.data import images as data_images
from suite.data.batches import KEPT, Lazy, draw_batches, map_batches, size
from suite.data.images import ImagesInMemory
from suite.data.labelled_text import Texts
from suite.data.reading import LAYOUTS, OWN, check_folder
from suite.data.samples import Samples, order
from tests.support.refusals import refused
from tests.unit.data.written import lstm, vgg, write


def images(count: int) -> Samples:
    """Images of one pixel; the byte is the image's position."""
    places = np.arange(count)
    part = ImagesInMemory(places.astype(np.int64) % 10, places.astype(np.uint8).reshape(-1, 1, 1, 1))
    return Samples("numbered", part, part, "images", {"classes": 10})


def positions(batch: Any) -> list[int]:
    """Positions of the samples of a batch, after a check that each one kept its class."""
    inputs, classes = batch
    places = [int(place) for place in inputs.reshape(len(inputs), -1)[:, 0]]
    assert classes.tolist() == [place % 10 for place in places]
    return places


SHAPE = vgg(1, 1, 10)


def test_epoch_contains_every_sample_once_in_an_order_of_the_seed() -> None:
    data = images(15)
    assert (data.samples, data.held_out) == (15, 15)

    def drawn(number: int, size: int, seed: int = 3) -> list[int]:
        return positions(data.batch(number, size=size, seed=seed, shape=SHAPE))

    seen = [place for number in range(8) for place in drawn(number, 4)]
    assert seen == [place for number in range(4) for place in drawn(number, 8)], "batches of another size go on alike"
    assert sorted(seen[:15]) == sorted(seen[15:30]) == list(range(15))
    assert seen[:15] != seen[15:30]
    assert drawn(5, 4) == seen[20:24], "in any order"
    assert drawn(0, 15, seed=4) != seen[:15]


def test_validation_is_every_whole_batch_in_order() -> None:
    for count, whole in ((3, [[0, 1, 2], [3, 4, 5]]), (7, [list(range(7))]), (8, [])):
        assert [positions(batch) for batch in images(7).validation_batches(size=count, shape=SHAPE)] == whole


def test_an_order_is_that_of_its_seed_for_ever() -> None:
    assert order(8, 0, 0).tolist() == [1, 4, 5, 6, 2, 0, 3, 7]


def test_provenance_is_of_samples_and_of_classes() -> None:
    said = images(9).provenance()
    assert said == images(9).provenance()
    assert (said["name"], said["bytes"]) == ("numbered", 2 * 9)
    assert said["sha256"] != images(8).provenance()["sha256"]
    pair = [Texts(np.arange(9, dtype=np.uint16), np.arange(1, 10), classes) for classes in (np.zeros(9), np.ones(9))]
    assert len({Samples("texts", part, part, "labelled_text", {}).provenance()["sha256"] for part in pair}) == 2


def draw(number: int) -> Any:
    rng = np.random.default_rng(number)
    return rng.normal(size=(8, 4)).astype(np.float32), rng.integers(0, 3, 8)


BYTES = 8 * 4 * 4 + 8 * 8


def test_few_batches_are_drawn_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    assert size(draw(0)) == BYTES
    assert draw_batches(draw, range(0)) == []
    monkeypatch.setattr(batches, "AHEAD", 3 * BYTES)
    ready = draw_batches(draw, range(3, 6))
    assert isinstance(ready, list)
    assert isinstance(draw_batches(draw, range(3, 7)), Lazy)
    firsts = [float(inputs[0, 0]) for inputs, _ in ready]
    assert firsts == [float(draw(number)[0][0, 0]) for number in (3, 4, 5)]
    monkeypatch.setattr(batches, "AHEAD", 0)
    later = draw_batches(draw, range(3, 6))
    assert [float(inputs[0, 0]) for inputs, _ in later] == firsts
    for ready_or_later in (ready, later):
        assert [float(first) for first in map_batches(ready_or_later, lambda batch: batch[0][0, 0])] == firsts


def test_many_batches_are_drawn_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "AHEAD", 1000)
    calls: list[int] = []

    def counted(number: int) -> Any:
        calls.append(number)
        return draw(number)

    ready = draw_batches(counted, range(100))
    assert len(ready) == 100
    assert calls == [0]
    readers = [iter(ready), iter(ready)]  # two stages, one a few batches behind
    for number in range(100):
        next(readers[0])
        if number >= KEPT // 4:
            next(readers[1])
    assert sorted(calls[1:]) == list(range(100))


def test_folders_of_another_form_are_refused(tmp_path: Path) -> None:
    for name, layout in LAYOUTS.items():
        rule = layout[0] if isinstance(layout[0], str) else layout[0][0]
        for folder, subject in ((None, "no folder 'None'"), (tmp_path, str(tmp_path))):
            with refused(InvalidRequest, subject=subject, rule=rule):
                check_folder(name, folder)
    with pytest.raises(UnknownName) as unknown:
        check_folder("imdbx", tmp_path)
    assert (unknown.value.value, "imdb" in unknown.value.legal) == ("imdbx", True)
    with refused(InvalidRequest, "data.source.train"):
        labelled_text.snippets(folder=tmp_path)
    for name in OWN:
        check_folder(name)
    assert text.check_folder is translation.check_folder is data_images.check_folder is check_folder


WMT16 = ("train.tok.clean.bpe.32000", "newstest2014.tok.bpe.32000")
TEXTS: tuple[tuple[Callable[[Path], object], Sequence[str]], ...] = (  # the first file is damaged
    (labelled_text.imdb, [f"{part}/{name}/0_9.txt" for part in ("train", "test") for name in ("neg", "pos")]),
    (translation.wmt16, ["vocab.bpe.32000", *(f"{part}.{language}" for part in WMT16 for language in ("en", "de"))]),
    (data_images.tiny_imagenet, ["wnids.txt", "val/val_annotations.txt", "val/images/a.JPEG", "train/a/images/a.JPEG"]),
)


@pytest.mark.parametrize(("read", "files"), TEXTS)
def test_binary_file_in_place_of_a_text_is_named(
    read: Callable[[Path], object], files: Sequence[str], tmp_path: Path
) -> None:
    write(tmp_path, dict.fromkeys(files, b"text") | {files[0]: b"\xff\xfe\x00\x80"})
    with refused(InvalidRequest, subject=str(tmp_path / files[0]), rule="UTF-8 text"):
        read(tmp_path)


UNREADABLE: tuple[tuple[Any, str, Any, str, Any, str], ...] = (  # tests/conf/commands.txt has others
    (data_images, "digits", vgg(12, 1, 10), "model.shape.image", "12", "model.shape.image=8"),
    (data_images, "cifar_100", vgg(32, 1, 100), "model.shape.colours", "1", "model.shape.colours=3"),
    (data_images, "cifar_100", vgg(32, 3, 10), "model.shape.classes", 10, "model.shape.classes=100"),
    (text, "wikitext_103", vgg(8, 1, 10), "data", "wikitext_103", ""),
    (labelled_text, "imdb", lstm(classes=1), "model.shape.classes", 1, "model.shape.classes=2"),
)


def test_networks_that_cannot_read_the_data_are_refused() -> None:
    for module, name, shape, key, value, legal in UNREADABLE:
        with refused(InvalidRequest, key, value, legal=legal):
            module.check_shape(name, None, shape)
    with refused(InvalidRequest, "model.shape.classes"):
        images(9).batch(0, size=1, seed=0, shape=vgg(1, 1, 9))
