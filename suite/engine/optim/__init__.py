"""Optimizers, learning-rate schedules, loss scaling, weight prediction, and the update step."""
