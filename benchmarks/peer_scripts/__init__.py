"""Contestants that run in a peer's environment: each function prepares a problem and returns one round of work."""
