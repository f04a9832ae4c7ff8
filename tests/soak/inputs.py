"""One random input of each kind, by its number: a config without ranks, one of real ranks, or a killed sweep."""

from __future__ import annotations

import time
from contextlib import chdir
from pathlib import Path
from random import Random

from tests.soak import composed, configs, kills, real
from tests.soak.endings import Ending

KILLS_OF_A_CHAIN = 5  # one sweep is killed and started again at most so often


def attempt(kind: str, seed: int, folder: Path, until: float, number: int) -> list[Ending]:
    """How the input of this number ends; the same whatever the others are. None begins after `until`."""
    random, place = Random(f"{seed}-{number}"), folder / f"{kind}-{number}"
    if time.monotonic() > until:
        return []
    place.mkdir()
    with chdir(place):
        match kind:
            case "configs":
                return list(composed.endings(configs.config(random, place), place / "reports"))
            case "real":
                return real.endings(real.config(random), place)
            case _:
                return kills.endings(random, place, KILLS_OF_A_CHAIN)
