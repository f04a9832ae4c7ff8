"""Decides whether last night made the suite slower: what a night runs, what it is compared with, and what it leaves."""
