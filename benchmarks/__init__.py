"""Measurements of the compiled programs: `python -m benchmarks.patterns`, `python -m benchmarks.minilm`."""
