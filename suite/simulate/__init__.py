"""Simulator: schedules in virtual time on modelled machines, without torch."""
