"""Helpers of the tests: reference trainings, cases, samples, ranks and tools."""
