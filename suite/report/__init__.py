"""Decides how records become a page: tables, figures, traces and verdicts, rebuilt from files at any time.

Reads records only and loads no torch, so that a report can be made far from the machine that measured.
"""

from suite.report.page import write_report

__all__ = ["write_report"]
