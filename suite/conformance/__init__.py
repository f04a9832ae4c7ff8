"""Laws that every system must keep.

The tests check the suite's own systems, and `suite conformance` checks a new system. case, reference what is trained,
and what is right of it in one process orders law 1, and 5 and 6 where no clock is needed gradients, replays laws 2 and
3, on whatever world memory, resuming laws 4 and 8 graphs, outcomes a whole graph's law 2; what a system leaves when it
is run, or killed laws which of them a system of which kind has to keep
"""
