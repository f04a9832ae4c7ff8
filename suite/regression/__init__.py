"""Regression detection: comparison of two sets of records, and nightly runs.

Both use one path: records are matched (`matching`), samples are paired by metric and their effect is estimated
(`metrics`, `suite.stats`), and `decide` gives the verdict. It loads no torch, so that records can be compared on
any machine.
"""
