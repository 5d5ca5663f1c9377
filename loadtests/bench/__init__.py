"""The benchmarks of `./run bench`, by what they measure."""
