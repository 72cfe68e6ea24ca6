"""Programs within a limit of memory or time, and the front between the two."""
