"""Decides what an artifact evaluator is handed: one archive that says of each claim how to check it, how long that
takes and what came out here, with everything that came out.

scrub      no path, user or host of this machine
claims     claim -> command -> expected time -> figure -> verdict
tasks      the order of work, and the time of each part
archive    one file, byte for byte the same from the same records; and how one that is given is verified
"""
