"""Explanations: from the program as written to the one chosen by rules alone, found, checked, shown and certified."""
