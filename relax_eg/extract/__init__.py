"""Extraction: device profiles, the cost of programs on them, and the choice of the cheapest program."""
