"""Words that every room uses: errors, checks of arguments, seeds, values that can be written down, status, progress."""
