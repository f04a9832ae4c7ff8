"""Laws that every system keeps.

The tests check the suite's own systems, and `suite conformance` checks a new system.

fixtures, reference    models, and their gradients in one process
orders                 law 1, and laws 5 and 6 without a clock
gradients, replays     laws 2 and 3, on any world
memory, resuming       laws 4 and 8
graphs, outcomes       law 2 of full-graph training; records and processes of a real run
laws                   the laws that apply to each kind of system
"""
