"""Timing of programs, and calibration of device profiles."""
