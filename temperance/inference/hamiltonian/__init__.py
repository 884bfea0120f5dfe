"""Samplers that accept or reject: chains as rows of a matrix."""
