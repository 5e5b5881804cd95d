"""AgentRL's protocol: its workers serve our clients, its evaluator uses our environments.

translate.py    converts between its JSON and our types; pure
wires.py        calls one of its workers over HTTP
grpc.py         the same over the gRPC stream that a worker opens
workers.py      one of its workers, as a `Worker` of the controller
fleet.py        all of its workers: heartbeats and losses
routes.py       the routes below /api that its evaluator, trainer and workers call
"""
