"""PipeOptim: asynchronous 1F1B with weight prediction."""
