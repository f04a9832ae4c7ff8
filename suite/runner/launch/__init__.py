"""Launch ranks with mpiexec, torchrun or srun, and supervise them until they end."""
