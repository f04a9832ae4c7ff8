"""Nightly runs: repeated experiments, compared with the accepted baseline."""
