"""Archive for artifact evaluators: how to check each claim, how long that takes, and all results of this machine.

scrub      no path, user or host of this machine
claims     claim -> command -> expected time -> figure -> verdict
tasks      the order of work, and the time of each part
archive    one file, byte for byte the same from the same records; and how one that is given is verified
"""
