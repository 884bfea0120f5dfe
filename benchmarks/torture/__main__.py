"""``python -m benchmarks.torture``."""

from benchmarks.torture import main

if __name__ == "__main__":
    raise SystemExit(main())
