"""Programs with functions as values, recursion and data types: instructions over compiled tensor programs."""
