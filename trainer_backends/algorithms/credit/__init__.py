"""Credit assignment: rewards in, an advantage for every trained token out."""
