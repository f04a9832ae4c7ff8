"""Decides how one rank carries out a program with real tensors: worker, stage, store, state, update, train."""
