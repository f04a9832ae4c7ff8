"""Decides which words the whole suite shares: ops, grids, traces, records, claims, and the protocols between parts."""
