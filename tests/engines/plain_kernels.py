"""What models/kernels/inference.py does, in plain torch: for tests of the GPU's engine on a CPU. Same functions, same arguments."""

from __future__ import annotations

import torch
from torch import Tensor

from ludus.engines.noise import uniform
from ludus.engines.sample import draw as draw_one_by_one

ROWS = 64


def write(
    keys: Tensor, values: Tensor, *, into: tuple[Tensor, Tensor], tables: Tensor, rows: Tensor, positions: Tensor
) -> None:
    page_tokens = into[0].shape[2]
    pages = tables[rows, positions // page_tokens].long()
    into[0][pages, :, positions % page_tokens] = keys
    into[1][pages, :, positions % page_tokens] = values


def decode(query: Tensor, *, cached: tuple[Tensor, Tensor], tables: Tensor, positions: Tensor, scale: float) -> Tensor:
    out = [_attend(query[n], cached, tables[n], int(position) + 1, scale) for n, position in enumerate(positions)]
    return torch.stack(out)


def prompt(
    query: Tensor,
    *,
    cached: tuple[Tensor, Tensor],
    tables: Tensor,
    positions: Tensor,
    blocks: tuple[Tensor, Tensor, Tensor],
    scale: float,
) -> Tensor:
    out = torch.zeros_like(query)
    for sequence, first, end in zip(*(column.tolist() for column in blocks), strict=True):
        for token in range(first, min(first + ROWS, end)) if sequence >= 0 else ():
            out[token] = _attend(query[token], cached, tables[sequence], int(positions[token]) + 1, scale)
    return out


def _attend(query: Tensor, cached: tuple[Tensor, Tensor], table: Tensor, length: int, scale: float) -> Tensor:
    """query: (query heads, head dim) sees the first `length` tokens of the pages in `table`."""
    page_tokens = cached[0].shape[2]
    pages = table[: -(-length // page_tokens)].long()
    keys, values = (each[pages].transpose(0, 1).flatten(1, 2)[:, :length] for each in cached)  # (heads, length, dim)
    group = query.shape[0] // keys.shape[0]
    keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    weights = (torch.einsum("hd,htd->ht", query, keys) * scale).softmax(-1)
    return torch.einsum("ht,htd->hd", weights, values)


def draw(
    logits: Tensor, *, temperatures: Tensor, origins: Tensor, positions: Tensor, constants: Tensor
) -> tuple[Tensor, Tensor]:
    uniforms = [
        uniform(origin % 2**64, position + 1)
        for origin, position in zip(origins.tolist(), positions.tolist(), strict=True)
    ]
    drawn = draw_one_by_one(logits, temperatures=temperatures.tolist(), uniforms=uniforms)
    tokens, logprobs = zip(*drawn, strict=True)
    return torch.tensor(tokens), torch.tensor(logprobs)


def noise_constants(device: torch.device) -> Tensor:
    return torch.zeros(3, dtype=torch.int64, device=device)
