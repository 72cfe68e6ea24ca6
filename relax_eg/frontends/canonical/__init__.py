"""One form for what two traces of a function compute."""
