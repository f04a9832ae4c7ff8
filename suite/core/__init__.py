"""Shared vocabulary of the suite: ops, grids, traces, records, claims and the protocols between packages."""
