"""How a program is spread over a mesh of devices: placements as states of values, chosen together with the algebra."""
