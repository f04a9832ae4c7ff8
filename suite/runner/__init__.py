"""Runs: from a configuration to a record."""
