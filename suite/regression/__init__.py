"""Regression detection: comparison of two sets of records, and nightly runs."""
