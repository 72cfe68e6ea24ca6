"""A canonical form of jaxprs, in which two traces of one function can be compared."""
