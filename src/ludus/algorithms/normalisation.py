"""Advantages normalised over more than a group. Promise: their mean is 0 and their std 1.

    batch            A~ = (A - mu) / sigma        over the sampled tokens of the batch
                     REINFORCE++ (2501.03262)
    task_normalise   A~ = (A - mu_e) / sigma_e    over those of one environment
                     task advantage normalisation (AgentRL, 2510.04206)

Statistics count every token once (as published), or every trajectory once, so that long
trajectories do not dominate. `centre = False` divides by the root mean square only, which keeps
signs and keeps a group of equal rewards at 0; otherwise such a group gets -mu / sigma, as in the
paper. Left out: the published epsilon of 1e-6 under sigma; equal values give exactly 0.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Literal

import numpy as np

from ludus.algorithms.advantages import differs
from ludus.config import Section
from ludus.config.pieces import piece

Statistics = Literal["token", "trajectory"]


class TaskOptions(Section):
    task_normalise: Statistics
    task_centre: bool = True
    """Subtract the environment's mean. false: only scale, so that signs stay and a group of equal
    rewards stays at 0."""


@piece("task_normalise", "none")
def unchanged(tokens: list[np.ndarray], environments: Seq[str], options: Section) -> list[np.ndarray]:
    return tokens


@piece("task_normalise", "trajectory")
@piece("task_normalise", "token")
def whiten_by(values: list[np.ndarray], environments: Seq[str], options: TaskOptions) -> list[np.ndarray]:
    """`whiten` among the trajectories of each environment."""
    whitened: dict[int, np.ndarray] = {}
    for name in set(environments):
        indices = [index for index, own in enumerate(environments) if own == name]
        chosen = [values[index] for index in indices]
        done = whiten(chosen, statistics=options.task_normalise, centre=options.task_centre)
        whitened.update(zip(indices, done, strict=True))
    return [whitened[index] for index in range(len(values))]


def whiten(
    values: Seq[np.ndarray],
    counted: Seq[np.ndarray] | None = None,
    *,
    statistics: Statistics = "token",
    centre: bool = True,
) -> list[np.ndarray]:
    """`values[i]`: the advantages of the sampled tokens of trajectory i; the result has the same
    shape. `counted[i]` marks those that enter the statistics, such as one for each turn."""
    flat = np.concatenate([*values, np.zeros(0)]).astype(np.float64)
    if counted is None:
        counted = [np.full(len(own), 1.0 if statistics == "token" else 1.0 / max(1, len(own))) for own in values]
    weights = np.concatenate([*counted, np.zeros(0)]).astype(np.float64)
    if not len(flat) or (centre and not differs(flat)) or not flat.any():
        return [np.zeros(len(own), dtype=np.float32) for own in values]
    mean = np.average(flat, weights=weights) if centre else 0.0
    deviation = np.sqrt(np.average((flat - mean) ** 2, weights=weights))
    return [((own.astype(np.float64) - mean) / deviation).astype(np.float32) for own in values]
