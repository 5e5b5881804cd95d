"""AgentGym's environment servers as environments, by URL and unmodified.

families.py     requests, answers and rewards    reading.py      the model's text as an action
instructions.py system messages                  splits.py       train and test ids
server.py       HTTP, a server's instances       environment.py  Environment and Session
"""

from ludus.adapters.agentgym.environment import AgentGym

__all__ = ["AgentGym"]
