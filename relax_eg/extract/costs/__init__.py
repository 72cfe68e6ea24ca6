"""The cost of programs on a device."""
