"""Rendezvous of ranks: who this process is, where ranks meet, and how they leave."""
