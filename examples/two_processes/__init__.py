"""A training step spread over two processes: `python -m examples.two_processes`."""
