"""Decides which weights of a network stay: what may be pruned, how a ticket is drawn, and what a ticket is."""
