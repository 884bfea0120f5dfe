"""Particles that repel one another."""
