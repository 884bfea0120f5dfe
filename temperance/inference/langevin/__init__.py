"""Samplers by discretised Langevin equations: stochastic gradients, and one Metropolis correction."""
