"""Methods that fit a distribution: families, estimators, natural gradients."""
