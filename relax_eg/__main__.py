"""`python -m relax_eg`: the command line."""

from relax_eg.cli import app

app()
