"""AxoNN: message-driven pipeline and data parallelism (IPDPS 2022)."""
