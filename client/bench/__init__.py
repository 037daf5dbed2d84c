"""Speed and memory of environments, hub and client on this machine, as ratios to bare yardsticks."""
