"""Checks of the user's calls and modules, and between ranks."""
