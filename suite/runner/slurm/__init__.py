"""Slurm job arrays for sweeps, with a record for every run."""
