"""Published statements about pipeline schedules: papers, documentation and code of other implementations."""
