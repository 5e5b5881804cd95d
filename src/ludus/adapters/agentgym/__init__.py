"""AgentGym's environment servers as environments, by URL and unmodified. Its words (create, reset, step) stop in this folder.

families.py  one row per family: what is sent, what comes back, what is worth a reward     instructions.py  what the model is told
reading.py   the model's text -> an action                                                  splits.py        which ids, train and test
server.py    HTTP, and which instance belongs to whom                                       environment.py   Environment and Session
"""

from ludus.adapters.agentgym.environment import AgentGym

__all__ = ["AgentGym"]
