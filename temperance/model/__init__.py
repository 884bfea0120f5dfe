"""The problem as a value: θ, priors, likelihoods, and the target that joins them."""
