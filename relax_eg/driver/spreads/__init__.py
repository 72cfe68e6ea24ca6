"""`spread`: programs with placements on a mesh of devices."""
