"""Turn control: whether to generate a turn again before it is executed."""
