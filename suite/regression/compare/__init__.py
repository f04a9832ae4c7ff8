"""Comparison of two sets of records: matching, statistics, and the decision whether a difference is a change.

Reads records only and loads no torch, so that numbers can be compared far from the machine that measured them.
"""
