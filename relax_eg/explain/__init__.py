"""Explanations of how the chosen program follows by rules from the one as written: found, checked, shown, certified."""
