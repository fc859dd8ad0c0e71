"""A Flower app that trains with privacy for each client."""
