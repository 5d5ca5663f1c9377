"""The benchmarks of `./run bench`, one module for each subject."""
