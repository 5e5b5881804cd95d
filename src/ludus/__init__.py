"""Ludus trains language-model agents with reinforcement learning. The public surface for environment authors is `ludus.environments`."""

__version__ = "0.1.0"
