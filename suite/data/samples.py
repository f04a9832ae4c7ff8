"""Finite data sets: parts of samples, batches determined by seed and batch number, and checks of the network."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from suite.core.errors import InvalidRequest
from suite.core.protocols import DataSource, Value

DATA = {"text": "standard_library", "images": "digits", "labelled_text": "snippets", "sentence_pairs": "number_names"}
MODELS = {
    **{"text": "gpt_tiny", "images": "vgg_narrow"},
    **{"labelled_text": "residual_lstm_narrow", "sentence_pairs": "gnmt_narrow"},
}


class Part(Protocol):
    """Training or validation samples."""

    def __len__(self) -> int: ...

    def batch(self, places: Sequence[int], shape: Any) -> Value:
        """Batch of the samples at these places, in the form that the network reads."""

    def update(self, digest: Any) -> int:
        """Update a hash with the content of the samples; return its bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Samples(DataSource):
    """A data set of two parts.

    Attributes:
        content: Kind of samples, which a network's shape states too.
        needs: Least values of the shape's fields: its classes, or its vocabulary.
    """

    name: str
    train: Any
    validation: Any
    content: str
    needs: Mapping[str, int]

    @property
    def samples(self) -> int:
        """Samples of one epoch. Batches continue over the end of an epoch, so no sample is left out."""
        return len(self.train)

    @property
    def held_out(self) -> int:
        """Number of validation samples. A last batch that is not full is left out."""
        return len(self.validation)

    def batch(self, number: int, *, size: int, seed: int, shape: Any) -> Value:
        """Batch `number` of a training run.

        An epoch contains every sample once, in an order drawn from (seed, epoch). A batch continues where the one
        before it ended. Raises InvalidRequest for a network that cannot read the samples.
        """
        return self._read(self.train, places(self.samples, number, size=size, seed=seed), shape)

    def validation_batches(self, *, size: int, shape: Any) -> Iterator[Value]:
        """Every full batch of validation samples, in order."""
        for start in range(0, self.held_out - size + 1, size):
            yield self._read(self.validation, range(start, start + size), shape)

    def provenance(self) -> dict[str, str | int]:
        """Name, bytes and SHA-256, training before validation. For files, the hash covers names and sizes."""
        digest = hashlib.sha256(self.head())
        size = sum(part.update(digest) for part in (self.train, self.validation))
        return {"name": self.name, "bytes": size, "sha256": digest.hexdigest()}

    def head(self) -> bytes:
        """What the hash covers before the parts."""
        return b""

    def _read(self, part: Part, places: Sequence[int], shape: Any) -> Value:
        check_network(self.name, shape, self.content, **self.needs)
        return part.batch(places, shape)


@lru_cache(maxsize=4)
def order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Permutation of `count` positions. It uses the generator's raw stream, which numpy keeps across releases."""
    raw = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(epoch,))).random_raw(count)
    return np.argsort(raw, kind="stable")


def places(count: int, number: int, *, size: int, seed: int) -> list[int]:
    """Positions of the samples of batch `number` in a data set of `count` samples.

    An epoch contains each sample once, in an order drawn from (seed, epoch). A batch continues where the one before it
    ended.
    """
    at = range(number * size, (number + 1) * size)
    return [int(order(count, seed, place // count)[place % count]) for place in at]


def check_network(name: str, shape: Any, content: str, **least: int) -> None:
    """Raise InvalidRequest for a network that reads other content, or has fewer classes or a smaller vocabulary, than
    the data set."""
    if shape.content != content:
        what, rule = f"data={name} with a {type(shape).__name__}", f"a network of {content.replace('_', ' ')}"
        raise InvalidRequest(what, rule=rule, legal=f"model={MODELS[content]}, or data={DATA[shape.content]}")

    for field, count in least.items():
        if (has := getattr(shape, field)) < count:
            key, rule = f"model.shape.{field}", f"at least {count}, as data={name} has"
            raise InvalidRequest(key, has, rule=rule, legal=f"{key}={count}")
