"""Benchmarks: each row a ratio to a reference that is measured in the same run; see docs/performance.md."""
