"""Policies: what answers prompts. One file each; ``hosted`` loads the ``openai`` package on first use only."""

from __future__ import annotations

from . import folders
from .base import AsyncEnv, BasePolicy, Context, Policy
from .expert import ExpertPolicy
from .hosted import HostedPolicy, Sampling
from .human import HumanPolicy
from .replay import ReplayPolicy
from .uniform import RandomPolicy

__all__ = [
    "AsyncEnv",
    "BasePolicy",
    "Context",
    "ExpertPolicy",
    "HostedPolicy",
    "HumanPolicy",
    "Policy",
    "RandomPolicy",
    "ReplayPolicy",
    "Sampling",
    "folders",
]
