"""Report: an HTML page from records, with tables, figures, traces and verdicts.

The report reads records only and does not need torch, so it can be made on another machine than the measurements.
"""

from collections.abc import Callable
from pathlib import Path

from suite.core.record import Record


def write_report(folder: Path, changed: Callable[[Record], str] = lambda _: "", experiment: str = "") -> Path:
    """Write the pages of a reports folder. Imports plotting libraries when it is called (suite.report.page.page).

    Args:
        folder: The reports folder.
        changed: As in suite.report.load.read_store.
        experiment: Name of the experiment whose page is written alone; empty for all pages.
    """
    from suite.report.page import page

    if experiment:
        return page.write_experiment(folder, experiment, changed)
    return page.write_report(folder, changed)


__all__ = ["write_report"]
