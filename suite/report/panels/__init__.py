"""Panels of the report: several runs of an experiment in one figure with its table."""
