"""Seeds derived from names. Promise: the same parts give the same seed in any process."""

from __future__ import annotations

import hashlib


def derive(*parts: str | int) -> int:
    """A 63-bit seed: derive(run_seed, "guess/train/17", attempt). Stable across processes, unlike
    hash(); unrelated for neighbouring parts, unlike a sum."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
