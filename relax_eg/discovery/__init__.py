"""Laws of operators that nobody stated: terms are enumerated, grouped by values, proved, and minimised to rules."""
