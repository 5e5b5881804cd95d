"""AgentGym's environment servers as environments, by URL and unmodified.

families.py     requests, answers and rewards of each family    reading.py      the model's text as an action
instructions.py the system message of each family               splits.py       train and test ids
server.py       HTTP, and the instances of a server             environment.py  Environment and Session
"""

from ludus.adapters.agentgym.environment import AgentGym

__all__ = ["AgentGym"]
