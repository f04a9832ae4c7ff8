"""SAMO: compressed model states of pruned networks (IPDPS 2023)."""
