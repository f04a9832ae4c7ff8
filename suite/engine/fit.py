"""A loop over the losses of a training run: hooks, early end and progress bar."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import closing, nullcontext
from typing import Any

from suite.accelerator import host_time
from suite.core.errors import InvalidRequest, MissingDependency, Unsupported
from suite.core.values import format_value
from suite.engine.losses import callable_name

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


def check_on_batch(on_batch: Any) -> None:
    """Raises InvalidRequest unless `on_batch` is None or a function of a loss and seconds."""
    if on_batch is None:
        return
    reason = "" if callable(on_batch) else "not a function"
    if not reason:
        try:
            inspect.signature(on_batch).bind(0.0, 0.0)
        except TypeError as error:
            reason = str(error)
        except ValueError:  # a builtin function has no signature
            return
    if reason:
        raise InvalidRequest(
            "on_batch",
            on_batch,
            what=f"on_batch={callable_name(on_batch) if callable(on_batch) else format_value(on_batch)}: {reason}",
            rule="a function of the loss and the seconds of a batch, or None",
            legal="on_batch=lambda loss, seconds: print(loss)",
        )


def _bar(total: int | None) -> Any:
    """A progress bar. Raises MissingDependency without tqdm."""
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError as error:
        raise MissingDependency("tqdm", "pip install tqdm for progress=True") from error
    return tqdm(total=total, unit="batch")
