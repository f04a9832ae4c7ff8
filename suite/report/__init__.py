"""Report: an HTML page from records, with tables, figures, traces and verdicts.

The report reads records only and does not need torch, so it can be made on another machine than the measurements.
"""

from pathlib import Path


def write_report(folder: Path) -> Path:
    """Write the page of a reports folder. Imports plotting libraries when it is called (suite.report.page.page)."""
    from suite.report.page import page

    return page.write_report(folder)


__all__ = ["write_report"]
