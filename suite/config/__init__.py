"""Typed configuration: one pydantic model per config group, and the rules that join them."""
