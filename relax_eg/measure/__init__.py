"""What runs on the clock: timing, and the calibration of device profiles."""
