"""The turn level: tag grammars, prompt styles, reward hooks and the environment that joins them."""
