"""How fast and how lean Temperance is beside bare PyTorch and beside its peers: ``python -m benchmarks``."""
