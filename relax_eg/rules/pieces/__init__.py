"""Programs in pieces: loops over parts of a dimension."""
