"""Fixtures of the benchmarks: each benchmark must record the circumstances of its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.samples import REQUIRED


@pytest.fixture(autouse=True)
def _extra_info_is_complete(benchmark: Any) -> Iterator[None]:
    yield
    missing = [name for name in REQUIRED if name not in benchmark.extra_info]
    if benchmark.stats is not None and missing:
        pytest.fail(f"extra_info lacks {', '.join(missing)}; tests/support/samples.py records them")
