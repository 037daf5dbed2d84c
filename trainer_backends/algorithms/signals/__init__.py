"""Uncertainty signals: a number for every token from the distribution that it was drawn from."""
