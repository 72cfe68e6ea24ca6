"""Device profiles, and what timings teach about them."""
