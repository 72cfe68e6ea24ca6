"""The conductors: what a user calls, and the search, the pricing and the cache between."""
