"""Graphs of tensor operations as C."""
