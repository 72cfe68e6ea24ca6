"""Checkers of rules: trials, judges, counterexamples, verdicts."""
