"""Tables of the simulator's accuracy, grouped from `accuracy.csv` and `accuracy_constants.csv`.

The page reads the files without the simulator, so this module imports pandas and `suite.core` alone. Errors are shares
of the measured throughput; a mean over groups weighs every source alike, because a few have most of the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from suite.core.errors import InvalidRequest
from suite.core.words import for_reports

ACCURACY, CONSTANTS = "accuracy.csv", "accuracy_constants.csv"  # names in a reports folder
NULL = "null model: "  # start of the columns of null models
OTHERS, BLIND = Path(__file__).with_name("others.yaml"), Path(__file__).with_name("blind.yaml")
FIRST = 3  # choices among which the measured best of a sweep counts as found
LEAST = 5  # layouts of a sweep
MAX_BYTES = 1 << 21  # of a file that is read; 739 measurements take 200 kB
REFUSED = 1.0  # error of a measurement that the simulator refuses
DISTINCT = {"high": 0.03, "medium": 0.10, "low": 0.40}  # difference from which an order is meaningful, by quality
_TEXTS = ("id", "group", "family", "device", "quality", "status", "assumed", "schedule", "sweep", "refusal")
_NUMBERS = ("measured", "simulated", "error", "without its family", "low", "high", "memory error", "fits")
_STEPS = dict.fromkeys(_TEXTS, str) | dict.fromkeys((*_NUMBERS, "with printed times"), float)
_STEPS |= {"known": bool, "scored": bool}
_CONSTANTS = {"family": str, "generation": str, "share": float, "cell": str}
_SIGNED = ("median", "least answer", "largest answer")
Tables = Mapping[str, pd.DataFrame]


def read(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Both frames of a reports folder; None where it has no accuracy.csv.

    Raises:
        InvalidRequest: A file cannot be read, or lacks a column, a row, or a finite number.
    """
    if not (folder / ACCURACY).exists():
        return None
    steps = _read(folder / ACCURACY, _STEPS)
    return steps, _read(folder / CONSTANTS, _CONSTANTS)


def _read(path: Path, columns: Mapping[str, type]) -> pd.DataFrame:
    legal = f"`{for_reports('accuracy', path.parent)}` writes the file again"
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} B")
        names = [*pd.read_csv(path, nrows=0)]
        if missing := [name for name in columns if name not in names]:
            raise ValueError(f"it has no column {missing[0]}")
        kinds = {name: columns.get(name, float) for name in names}
        empty = {name: [""] for name, kind in kinds.items() if kind is float}
        frame = pd.read_csv(path, dtype=kinds, keep_default_na=False, na_values=empty)
        if not len(frame) or not frame.get("scored", pd.Series([True])).any():
            raise ValueError("it has no scored row")
        if np.isinf(frame.select_dtypes("number")).to_numpy().any():
            raise ValueError("a number is infinite")
    except (OSError, ValueError, KeyError, OverflowError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}", rule="as it was written", legal=legal) from error
    return frame


def groups(steps: pd.DataFrame) -> pd.DataFrame:
    """Errors by group, in order of first appearance: mean and largest absolute error, median signed error, the smallest
    mean error of the null models, and the mean error with constants fitted without the group's family."""
    scored = steps[steps["scored"]]
    nulls = [name for name in steps if name.startswith(NULL)]
    sizes = scored[["error", "without its family", *nulls]].abs().fillna(REFUSED).groupby(scored["group"], sort=False)
    by, means = scored.groupby("group", sort=False), sizes.mean()
    return pd.DataFrame(
        {
            "device": by["device"].first(),
            "cells": by.size(),
            "mean error": means["error"],
            "largest": sizes["error"].max(),
            "median": by["error"].median(),
            "null model": means[nulls].min(axis=1),
            "without its family": means["without its family"],
            "family": by["family"].first(),
        }
    )


def orders(steps: pd.DataFrame) -> tuple[int, int]:
    """Pairs of one group whose measurements differ by more than their noise: those in the right order, and all."""
    right = pairs = 0
    usable = steps[(steps["status"] == "ok") & (steps["measured"] > 0)]
    for _, rows in usable.groupby("group", sort=False):
        first, second = np.triu_indices(len(rows), 1)
        measured, simulated = rows["measured"].to_numpy(), rows["simulated"].to_numpy()
        noise = rows["quality"].map(DISTINCT).to_numpy()
        apart = np.abs(measured[first] / measured[second] - 1) > np.maximum(noise[first], noise[second])
        answered = ~np.isnan(simulated[first] + simulated[second])
        same = (measured[first] > measured[second]) == (simulated[first] > simulated[second])
        right, pairs = right + int((apart & answered & same).sum()), pairs + int(apart.sum())
    return right, pairs


def totals(steps: pd.DataFrame) -> pd.DataFrame:
    """Errors over all groups, next to the first comparison, to parts and to the null models."""
    by_group, (right, pairs) = groups(steps), orders(steps)
    scored = steps[steps["scored"]]
    sizes = np.sort(scored["error"].abs().fillna(REFUSED))
    told = steps[steps["known"] & steps["scored"]]
    known = groups(told)["mean error"].mean() if len(told) else by_group["mean error"].mean()
    blind = yaml.safe_load(BLIND.read_text(encoding="utf-8"))
    names = ("mean error", "90th percentile", "right orders", "predicted not to fit", "predicted to fit", "refused")
    full = {
        "fitted, without the cells of the fit": (
            *(by_group["mean error"].mean(), sizes[int(0.9 * len(sizes))], right / pairs if pairs else 1.0),
            *(counted(steps[steps["status"] == status]["fits"] == fits) for status, fits in (("oom", 0), ("ok", 1))),
            str((steps["refusal"] != "").sum()),
        ),
        "blind, nothing fitted": (
            *(blind["mean"], blind["percentile_90"], blind["orders"]),
            *(f"{found} of {every}" for found, every in (blind["oom"], blind["fit"])),
            str(blind["refused"]),
        ),
        "fitted, cells with all decisive settings told": (known,),
        "fitted without the family of each group": (by_group["without its family"].mean(),),
    }
    for name in (name for name in steps if name.startswith(NULL)):
        full[name] = (scored[name].abs().fillna(REFUSED).groupby(scored["group"]).mean().mean(),)
    rows = {name: dict(zip(names, values, strict=False)) for name, values in full.items()}
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.rename_axis("comparison")


def counted(found: pd.Series) -> str:
    """How many of how many; empty for none."""
    return f"{int(found.sum())} of {len(found)}" if len(found) else ""


def ranges(steps: pd.DataFrame) -> pd.DataFrame:
    """Ranges of the answers over plausible values of settings that sources do not tell, by group: all groups first,
    then the group with most measurements outside. `distance` is of the measured value from the nearer end; 0 inside."""
    rows = steps[steps["scored"] & steps["low"].notna()]
    low, high = rows["low"] / rows["measured"] - 1, rows["high"] / rows["measured"] - 1
    frame = rows.assign(
        least=low, most=high, distance=np.maximum(np.maximum(low, -high), 0.0), inside=(low <= 0) & (high >= 0)
    )
    by = frame.groupby("group", sort=False)
    table = pd.DataFrame(
        {
            "cells": by.size(),
            "measured inside": by["inside"].agg(counted),
            "least answer": by["least"].median(),
            "largest answer": by["most"].median(),
            "distance": by["distance"].mean(),
        }
    ).iloc[(by["inside"].sum() - by.size()).argsort(kind="stable")]
    if len(table):
        table.loc["all groups"] = [len(frame), counted(frame["inside"]), None, None, table["distance"].mean()]
        table = table.iloc[[-1, *range(len(table) - 1)]]
    return table.rename_axis("group")


def memory(steps: pd.DataFrame) -> pd.DataFrame:
    """Errors of the bytes of the fullest device, and rows that did not fit, of the groups that have either."""
    named = set(steps[steps["memory error"].notna() | (steps["status"] == "oom")]["group"])
    rows: dict[str, tuple[object, ...]] = {}
    for name, part in [("these groups", steps[steps["group"].isin(named)]), *steps.groupby("group", sort=False)]:
        errors = part["memory error"].dropna()
        if name in named or (named and name == "these groups"):
            mean = errors.abs().groupby(part["group"]).mean().mean()
            fits = (counted(part[part["status"] == status]["fits"] == yes) for status, yes in (("oom", 0), ("ok", 1)))
            rows[str(name)] = (len(errors), mean, errors.abs().max(), errors.median(), *fits)
    names = ["cells", "mean error", "largest", "median", "predicted not to fit", "predicted to fit"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=names).rename_axis("group")


def schedules(steps: pd.DataFrame) -> pd.DataFrame:
    """Errors with printed pass times in place of the cost model, by group and schedule, next to those of the model."""
    rows = steps[steps["with printed times"].notna()]
    by = rows.groupby(["group", "schedule"], sort=False)
    sizes = rows.assign(own=rows["with printed times"].abs(), modelled=rows["error"].abs())
    sizes = sizes.groupby(["group", "schedule"], sort=False)
    columns = {
        "cells": by.size(),
        "mean error": sizes["own"].mean(),
        "largest": sizes["own"].max(),
        "median": by["with printed times"].median(),
        "mean error of the cost model": sizes["modelled"].mean(),
    }
    return pd.DataFrame(columns).reset_index("schedule")


def sweeps(steps: pd.DataFrame) -> pd.DataFrame:
    """Whether the simulator finds the layouts that sources measured to be quickest. `place` of the measured best among
    the simulator's choices is 0 if it is predicted not to fit; `lost` is the throughput lost by its first choice."""
    rows = []
    for _, part in steps[steps["sweep"] != ""].groupby("sweep", sort=False):
        if len(part) < LEAST:
            continue
        best = part["measured"].idxmax()
        fitting = part[(part["fits"] == 1) & part["simulated"].notna()]
        order = (fitting if len(fitting) else part).sort_values("simulated", ascending=False, kind="stable")
        place = list(order.index).index(best) + 1 if best in order.index else 0
        lost = 1 - order["measured"].iloc[0] / part["measured"].max()
        rows.append((part["group"].iloc[0], len(part), place, lost, order["id"].iloc[0], part["id"][best]))
    names = ["group", "layouts", "place", "lost", "first choice", "measured best"]
    return pd.DataFrame(rows, columns=names).set_index("group")


def published(steps: pd.DataFrame, path: Path = OTHERS) -> pd.DataFrame:
    """Errors of other simulators against measurements, as their sources print them, next to ours on the same group."""
    frame = pd.DataFrame(yaml.safe_load(path.read_text(encoding="utf-8"))["simulators"])
    ours = groups(steps)[["mean error", "largest"]].reindex(frame["group"]).set_index(frame.index)
    return pd.DataFrame(
        {
            "measurements": frame["cells"],
            "mean error": frame["mean"] / 100,
            "largest": frame["largest"] / 100,
            "ours: mean error": ours["mean error"],
            "ours: largest": ours["largest"],
            "note": frame["note"].fillna(""),
            "source": frame["source"],
        }
    ).set_index(frame["name"].rename("simulator"))


def tables(steps: pd.DataFrame, constants: pd.DataFrame) -> Tables:
    """All tables by their titles; those without a row are left out."""
    fitted = constants.set_index(constants.columns[0])
    found = {
        "Totals": totals(steps),
        "Groups, the largest error first": groups(steps).sort_values("mean error", ascending=False, kind="stable"),
        "Ranges over plausible values of unknown settings": ranges(steps),
        "Memory of the fullest device": memory(steps),
        "Schedules with printed pass times": schedules(steps),
        "Fitted constants": fitted,
        "Sweeps of layouts": sweeps(steps),
        "Published errors of other simulators": published(steps),
    }
    return {title: table for title, table in found.items() if len(table)}


def shown(value: object, column: str) -> str:
    """A value of a table as people write it: shares as percent, medians and ends of ranges with their sign."""
    if not isinstance(value, float | np.floating):
        return "" if value is None else str(value)
    if np.isnan(value):
        return ""
    if column == "turning":
        return f"{value:.0f}"
    return f"{100 * float(value):{'+' if column in _SIGNED else ''}.1f} %"
