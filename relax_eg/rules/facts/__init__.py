"""Rules about facts, and the facts of a program's values."""
