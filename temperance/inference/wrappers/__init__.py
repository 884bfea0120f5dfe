"""Methods of methods."""
