"""Decides how programs run on machines that are not here: events in virtual time, costs from models, no torch."""
