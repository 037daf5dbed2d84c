"""Token control: when to end a turn's thinking, decided while it is generated."""
