"""Point-to-point transports: messages between pipeline stages over MPI, gloo, NCCL and threads."""
