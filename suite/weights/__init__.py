"""Decides which version of a stage's weights a pass reads. Pure decisions; engine.store holds the tensors."""

from suite.weights.ledger import Ledger
from suite.weights.policy import Latest, Predict

__all__ = ["Latest", "Ledger", "Predict"]
