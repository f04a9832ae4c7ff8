"""Decides whether one set of records is slower than another: what may be compared, and when a difference is a change.

Reads records only and loads no torch, so that numbers can be compared far from the machine that measured them.
"""
