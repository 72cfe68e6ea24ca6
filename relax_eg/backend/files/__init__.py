"""Optimized functions in files: artifacts, variants and executables as plain data."""
