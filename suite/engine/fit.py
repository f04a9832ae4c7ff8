"""A loop over the losses of a training run: batches, hooks, early end and progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import closing, nullcontext
from typing import Any

from suite.accelerator import host_time
from suite.core.errors import Unsupported

OnBatch = Callable[[float, float], bool | None]


def fit(
    losses: Iterator[float], on_batch: OnBatch | None, *, bar: bool, batches: Iterable[Any], streams: bool
) -> list[float]:
    """Consume the losses of `Engine.train`; see `Engine.fit`.

    Args:
        bar: Whether this rank shows a progress bar.
        batches: What is trained on, for the length of the bar.
        streams: Whether batches stream, so that training cannot end early.
    """
    total = len(batches) if isinstance(batches, Sized) else None
    seen: list[float] = []
    with _bar(total) if bar else nullcontext() as shown, closing(losses):  # type: ignore[type-var]
        begin = host_time()
        for loss in losses:
            end = host_time()
            seen.append(loss)
            if shown is not None:
                shown.set_postfix_str(f"loss {loss:.4g}", refresh=False)
                shown.update()
            if on_batch is not None and on_batch(loss, end - begin):
                if streams:
                    raise Unsupported(
                        "on_batch",
                        on_batch,
                        what="on_batch= that ends batches that stream",
                        rule="stages of an asynchronous pipeline are at different batches until it drains",
                        legal="an on_batch that returns None, and fewer batches in one call",
                    )
                break
            begin = host_time()
    return seen


def _bar(total: int | None) -> Any:
    from tqdm.auto import tqdm  # not a requirement of the suite

    return tqdm(total=total, unit="batch")
