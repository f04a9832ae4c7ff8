"""Report: an HTML page from records, with tables, figures, traces and verdicts.

Reads records only and loads no torch, so that a report can be made far from the machine that measured.
"""

from pathlib import Path


def write_report(folder: Path) -> Path:
    """As suite.report.page.page.write_report, which loads what draws and tabulates."""
    from suite.report.page import page

    return page.write_report(folder)


__all__ = ["write_report"]
