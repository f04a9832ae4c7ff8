"""Decides what `make doctor` says: one line per component, works or not here because, and what to do."""
