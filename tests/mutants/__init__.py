"""Mutation testing: small faults planted in suite and baselines, and the tests that notice them."""
