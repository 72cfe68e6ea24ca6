"""Explanations of how the chosen program follows by rules from the program as written: derivations are found, checked,
shown as text, and stored as certificates."""
