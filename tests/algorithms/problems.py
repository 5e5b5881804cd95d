"""Two problems small enough to enumerate: a two-armed bandit, and a walk of two turns. Their true gradients are exact.

The walk: in turn 0 the policy picks arm a, in turn 1 arm b in a state that a decided. Three logits: turn 0, and one per state of turn 1.
Tokens of turn 0 are 1 + a, tokens of turn 1 are 3 + 2 a + b, so that one vector of logprobs by token describes a policy.
"""

import itertools
import math

import numpy as np
import torch

from ludus.algorithms import Tokens
from tests.algorithms.examples import group_of, make_conversation

ARMS = (0, 1)
FIRST = (0.2, -0.1)
"""Reward of the walk's turn 0, by arm."""
SECOND = ((0.0, 1.0), (0.7, 0.3))
"""Of its turn 1, by the arms of turn 0 and 1."""


def table(logits):
    """(7,) logprob of each token of the walk; token 0 is an observation."""
    first = torch.stack([torch.zeros(()), logits[0]]).log_softmax(0)
    second = [torch.stack([torch.zeros(()), logits[1 + state]]).log_softmax(0) for state in ARMS]
    return torch.cat([torch.zeros(1), first, *second])


def walks():
    """(tokens of the turns, rewards of the turns) of all four outcomes."""
    return [(((1 + a,), (3 + 2 * a + b,)), (FIRST[a], SECOND[a][b])) for a in ARMS for b in ARMS]


def pulls(rewards=(0.3, 1.0)):
    """The bandit in the same words: one turn, tokens 1 and 2."""
    return [(((1 + a,),), (rewards[a],)) for a in ARMS]


def chance(outcome, logprobs):
    return torch.stack([logprobs[token] for said in outcome[0] for token in said]).sum().exp()


def true_gradient(logits, outcomes, *, reward=lambda outcome: sum(outcome[1])):
    leaf = torch.tensor(logits, requires_grad=True)
    logprobs = table(leaf)
    sum(chance(outcome, logprobs) * reward(outcome) for outcome in outcomes).backward()
    return leaf.grad.numpy()


def mean_gradient(algorithm, logits, outcomes, *, spoken_with=None, size=2, values=None):
    """The gradient of the loss, averaged over every outcome of a group of `size`, weighed by its chance."""
    behaviour = table(torch.tensor(logits if spoken_with is None else spoken_with))
    total = np.zeros(len(logits))
    for drawn in itertools.product(outcomes, repeat=size):
        group = group_of([_played(outcome, behaviour, name=f"t{i}") for i, outcome in enumerate(drawn)])
        sequences = algorithm.batch([group], values=values or expecting_nothing).sequences
        if sequences:
            weight = math.prod(float(chance(outcome, behaviour)) for outcome in drawn)
            leaf = torch.tensor(logits, requires_grad=True)
            loss_of(algorithm, sequences, policy=table(leaf)).backward()
            total += weight * leaf.grad.numpy()
    return total


def mean_gradient_of_mixture(algorithm, logits, other, outcomes, *, share, draw):
    """The same for pairs whose turns are spoken by `other` with chance `share`, drawn for every turn or once per session."""
    tables = [table(torch.tensor(logits)), table(torch.tensor(other))]
    num_turns = len(outcomes[0][0])
    coins = itertools.product(ARMS, repeat=num_turns) if draw == "turn" else [(arm,) * num_turns for arm in ARMS]
    sessions = []
    for tossed in list(coins):
        luck = math.prod(share if coin else 1 - share for coin in (tossed if draw == "turn" else tossed[:1]))
        for said, rewards in outcomes:
            logprobs = [[float(tables[coin][t]) for t in own] for coin, own in zip(tossed, said, strict=True)]
            likelihood = luck * math.exp(sum(map(sum, logprobs)))
            sessions.append((likelihood, make_conversation(said, rewards, logprobs=logprobs)))
    total = np.zeros(len(logits))
    for (p, first), (q, second) in itertools.product(sessions, repeat=2):
        sequences = algorithm.batch([group_of([first, second])]).sequences
        if sequences:
            leaf = torch.tensor(logits, requires_grad=True)
            loss_of(algorithm, sequences, policy=table(leaf)).backward()
            total += p * q * leaf.grad.numpy()
    return total


def expecting_nothing(trajectories):
    """A critic whose values are all 0: GAE with lambda 1 is then the return to go."""
    return [np.zeros(sum(s.num_sampled for s in trajectory.sequences)) for trajectory in trajectories]


def _played(outcome, behaviour, *, name):
    said, rewards = outcome
    logprobs = [[float(behaviour[token]) for token in own] for own in said]
    return make_conversation(said, rewards, name=name, logprobs=logprobs)


def tokens_of(sequences, *, policy=None, reference=None, entropies=None):
    """`policy`: logprobs of each id under the current policy (with gradient); without one, what the engine reported."""
    ids = torch.tensor(np.concatenate([s.ids[s.sampled] for s in sequences]).astype(np.int64))
    pick = {
        name: torch.tensor(np.concatenate([getattr(s, name)[s.sampled] for s in sequences]))
        for name in ("logprobs", "advantages", "weights")
    }
    logprobs = pick["logprobs"] if policy is None else policy[ids]
    return Tokens(
        logprobs,
        logprobs.detach(),
        pick["logprobs"],
        pick["advantages"],
        pick["weights"],
        rows=torch.tensor([row for row, s in enumerate(sequences) for _ in range(s.num_sampled)]),
        reference_logprobs=logprobs.detach() if reference is None else reference[ids],
        entropies=torch.zeros_like(logprobs) if entropies is None else entropies[ids],
    )


def loss_of(algorithm, sequences, *, policy=None, **given):
    tokens = tokens_of(sequences, policy=policy, **given)
    return (tokens.weights * algorithm.loss(tokens)[0]).sum()
