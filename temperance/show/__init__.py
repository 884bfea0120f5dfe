"""Looking at it: plots and the report."""
