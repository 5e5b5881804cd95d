"""ArCHer (2402.19446): the advantage of a turn by an off-policy critic.

    A_t = min Q(s, a) - min V(s), for every token of the turn

The critic (`trainer/critics/archer.py`) computes it. Asking the critic also trains it: the turns
are added to its replay buffer first.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from ludus.algorithms.advantages import Discounted
from ludus.config.pieces import advantage
from ludus.types import Group


@advantage("archer", per="token", critics=("archer",), trains_critic=True)
def archer(group: Group, options: Discounted, values: Seq[np.ndarray]) -> Seq[np.ndarray]:
    return values
