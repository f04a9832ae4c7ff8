"""Weight-version policies: the version that each pass reads. suite.engine.versions holds the tensors."""

from suite.weights.ledger import Ledger
from suite.weights.policy import Latest, Predict

__all__ = ["Latest", "Ledger", "Predict"]
