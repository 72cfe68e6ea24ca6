"""Selection: the cheapest program in an extraction graph, with shared values counted once."""
