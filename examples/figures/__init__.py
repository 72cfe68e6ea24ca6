"""Figures of the Relax paper as programs that run: each prints the module it is about."""
