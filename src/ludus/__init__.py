"""Ludus trains language-model agents with reinforcement learning.

Environment authors import `ludus.environments`.
"""

__version__ = "0.1.0"
