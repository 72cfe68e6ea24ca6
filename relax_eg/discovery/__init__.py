"""Laws of operators that nobody stated: terms are enumerated, grouped by their values, proved, and minimised to rules."""
