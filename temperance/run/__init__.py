"""Running a method: fit, its result, its files; draws from a density of one's own; optimisers for one's own loop."""
