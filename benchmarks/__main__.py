"""`python -m benchmarks`: the whole run."""

from .bench_path import main

if __name__ == "__main__":
    main()
