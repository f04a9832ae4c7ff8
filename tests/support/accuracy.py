"""Small frames of the simulator's accuracy, made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from suite.simulate.validation.accuracy import Accuracy

ROW: dict[str, Any] = {
    **{"id": "a", "group": "near", "family": "Megatron-LM", "device": "A100-80", "quality": "high", "status": "ok"},
    **{
        "known": True,
        "scored": True,
        "assumed": "",
        "schedule": "",
        "sweep": "",
        "measured": 100.0,
        "simulated": 100.0,
    },
    **{"error": 0.0, "null model: one share": 0.5, "without its family": 0.1, "low": None, "high": None},
    **{"memory error": None, "fits": 1.0, "with printed times": None, "refusal": ""},
}
CONSTANT = {"family": "a100", "generation": "flash", "share": 0.7, "cell": "a", "low": 0.6, "high": 0.8, "turning": 3}
FAR = {"group": "far", "error": 1.1, "simulated": 210.0, "null model: one share": -0.3}


def steps(*rows: dict[str, Any]) -> pd.DataFrame:
    """Measured steps that differ from ROW in these columns. An error gives the simulated throughput."""
    filled = [ROW | {"id": str(number), **row} for number, row in enumerate(rows)]
    for row in filled:
        if "simulated" not in rows[int(row["id"])] and row["measured"] is not None and row["error"] is not None:
            row["simulated"] = row["measured"] * (1 + row["error"])
    frame = pd.DataFrame(filled)
    return frame.astype({name: float for name, value in ROW.items() if value is None or isinstance(value, float)})


def write(folder: Path, *rows: dict[str, Any]) -> None:
    Accuracy(steps(*(rows or ({}, FAR))), pd.DataFrame([CONSTANT])).write(folder)
