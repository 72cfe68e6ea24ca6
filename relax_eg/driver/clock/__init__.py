"""What is decided by the clock: timed programs, settled first calls, and what timings teach about the machine."""
