"""Sokoban: the environment (``env``), its rooms (``rooms``) and the shortest solutions (``solver``)."""
