"""Sweeps as arrays of Slurm jobs, with a record for every run."""
