"""Archive for artifact evaluators: claims with their commands and times, and all results of this machine.

redact     remove paths, users and hosts of this machine
build      build a reproducible archive from records
"""
