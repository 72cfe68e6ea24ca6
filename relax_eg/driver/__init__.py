"""The driver: the functions that users call, and the search, pricing and cache behind them."""
