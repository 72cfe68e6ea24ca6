"""Laws that a program could use: its fragments, terms with equal values, and what the laws would save."""
