"""A loop over the losses of a training run: batches, hooks, early end and progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import closing, nullcontext
from typing import Any

import torch

from suite.accelerator import host_time
from suite.core.errors import InvalidRequest, MissingDependency, Unsupported
from suite.core.values import format_value
from suite.engine.callables import binding_error, callable_name

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
    if reason := binding_error(on_batch, 0.0, 0.0) if callable(on_batch) else "not a function":
        raise InvalidRequest(
            "on_batch",
            on_batch,
            what=f"on_batch={callable_name(on_batch) if callable(on_batch) else format_value(on_batch)}: {reason}",
            rule="a function of the loss and the seconds of a batch, or None",
            legal="on_batch=lambda loss, seconds: print(loss)",
        )


def check_batches(batches: Any) -> None:
    """Raises InvalidRequest for batches that cannot be iterated."""
    if not isinstance(batches, Iterable) or isinstance(batches, str | bytes | dict | torch.Tensor):
        rule = "a list or another iterable of batches (inputs, targets)"
        raise InvalidRequest(f"batches={format_value(batches)}", rule=rule, legal="batches=[(inputs, targets)]")


def _bar(total: int | None) -> Any:
    """A progress bar. Raises MissingDependency without tqdm."""
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError as error:
        raise MissingDependency("tqdm", "pip install tqdm for progress=True") from error
    return tqdm(total=total, unit="batch")
