"""From values per sampled token to the metrics of a step. Every sampled token of the batch counts the same."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from ludus.models.transfer import fetched

MAXIMA = ("importance", "logprob_gap")
"""Diagnostics whose maximum is reported beside the mean."""


def summarise(pieces: Seq[Mapping[str, Tensor]]) -> dict[str, float]:
    """Return means over all tokens, `NAME_max` for the MAXIMA, and `ess`.

    `ess` is the effective sample size of the importance weights as a share of the tokens.
    """
    columns = {name: torch.cat([piece[name] for piece in pieces]).float() for name in pieces[0]}
    reduced = {name: values.mean() for name, values in columns.items()}
    reduced |= {f"{name}_max": columns[name].max() for name in MAXIMA if name in columns}
    if "importance" in columns:
        weights = columns["importance"]
        reduced["ess"] = weights.sum() ** 2 / (weights**2).sum() / len(weights)
    return dict(zip(reduced, fetched(torch.stack(list(reduced.values()))).tolist(), strict=True))
