"""Reward shaping, before credit: rows in, rows with other token rewards out; the rows given stay as they are.

Rewards of single turns (format penalties, meta-reasoning, lengths within a group) are hooks of the environment's turn
level (``turngym.envs.turn.hooks``) and are in the episodes already; here is what needs token counts or a whole batch.
"""
