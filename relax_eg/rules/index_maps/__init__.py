"""Index maps: how operators that compute nothing read their operands, and how they commute with those that compute."""
