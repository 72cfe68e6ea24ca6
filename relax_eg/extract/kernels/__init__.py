"""Kernels as choices: what one may hold and costs, and selection over them together with the algebra."""
