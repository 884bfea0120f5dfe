"""What evaluates a problem: networks at many θ, energies, compilation, C kernels. Users need none of it by name."""
