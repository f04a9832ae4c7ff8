"""Decides how a run is made: composed, checked, launched, measured, recorded."""
