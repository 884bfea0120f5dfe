"""Methods that find points, and what is put around them."""
