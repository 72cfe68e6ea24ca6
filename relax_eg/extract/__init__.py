"""Extraction: device profiles, what programs cost on them, and the choice of the cheapest."""
