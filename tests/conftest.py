"""Fixtures of all tests: one torch thread, cached YAML files and compositions, and a test without ranks.

One thread keeps the order of summation of a rank. The cache saves a quarter of a second per Hydra composition.
Hypothesis has no deadline, because its default of 200 ms of wall time can pass while another process holds the core.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("shared cores", deadline=None)
settings.load_profile("shared cores")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _plugin_folders() -> None:
    """Allow configurations to name the plug-ins of tests, as `launch.python_path` does for a user's folder."""
    from suite.config.locate import search

    search([Path(__file__).parents[1], Path(__file__).parent / "plugins"])


@pytest.fixture(autouse=True, scope="session")
def _parsed_once() -> Iterator[None]:
    """Parse each YAML text once. A changed file has another text and is parsed again."""
    from omegaconf import OmegaConf

    load = OmegaConf.load
    parsed = cache(lambda text: load(StringIO(text)))

    def loaded(file: Any) -> Any:
        return deepcopy(parsed(file.read())) if hasattr(file, "read") else load(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OmegaConf, "load", staticmethod(loaded))
        yield


@pytest.fixture(autouse=True, scope="session")
def _composed_once() -> Iterator[None]:
    """Compose each list of overrides once per search path.

    A composition that adds a folder to the search path is not cached, because the folder may change.
    """
    from hydra.core.global_hydra import GlobalHydra

    from suite.config import compose as module

    compose, cached = module.compose, dict[tuple[Any, ...], Any]()

    def composed(name: str, overrides: list[str]) -> Any:
        if any(override.startswith("hydra.searchpath=") for override in overrides):
            return compose(name, overrides=overrides)
        places = GlobalHydra.instance().config_loader().get_search_path().get_path()
        key = (name, *overrides, *((place.provider, place.path) for place in places))
        if key not in cached:
            cached[key] = compose(name, overrides=overrides)
        return cached[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "compose", composed)
        yield


@pytest.fixture
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test that starts a rank."""
    monkeypatch.setattr("suite.runner.launch.processes.RankGroup.start", lambda *_, **__: pytest.fail("a rank started"))
