"""Is it right? Diagnostics, calibration, symmetries of weight space."""
