"""AgentRL's dialect: its workers serve our clients, its evaluator and trainer run our environments. Its words stop in this folder.

translate.py    their JSON <-> our types; pure
wires.py        calling one of their workers over HTTP
grpc.py         the same over the stream that a worker opens itself
workers.py      one of their workers, as one of the controller's
fleet.py        all of them: who beats, who is gone
front.py        /api, what their evaluator, trainer and workers call
"""
