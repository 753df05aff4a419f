"""Several processes that serve one address: a parent that accepts connections, and workers that serve them."""
