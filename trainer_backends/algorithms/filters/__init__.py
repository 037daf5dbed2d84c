"""Filters: what is worth training on. Outcomes of episodes in, a boolean for every episode out; nothing is changed."""
