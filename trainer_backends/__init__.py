"""Training: the algorithms as pure parts, and the engines that run them."""
