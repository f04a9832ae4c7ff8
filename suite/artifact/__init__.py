"""Archive for artifact evaluators: claims with their commands and times, and all results of this machine.

redact     remove paths, users and hosts of this machine
claims     claim, command, expected time, figure and verdict
readme     order of work, and the time of each part
archive    write a reproducible archive
build      build the archive from records
"""
