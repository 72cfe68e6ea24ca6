"""`quantize`: programs with weights of fewer bits."""
