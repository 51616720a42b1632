"""Benchmarks, a module for each claim: run `python -m benchmarks.NAME` from the root of the repository."""
