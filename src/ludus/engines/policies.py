"""The named policies of an embedded engine and the cache they share.

Promise: weights change between two passes and completely, or not at all.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ludus.engines.noise import uniform
from ludus.engines.pages import Pages
from ludus.engines.plan import Chunk, Collect, Drawn, Pass, Plan, Span
from ludus.engines.sample import draw, log_softmax
from ludus.errors import ConfigError, EngineFailed, border, nearest
from ludus.models.attention.cached import KeyValueCache, Layout, Piece, Shape
from ludus.models.layers.inference import use_inference_layers
from ludus.models.serving import Replay, forward, serve
from ludus.models.transfer import fetched, placed
from ludus.types import CURRENT


class Policies:
    """Weights of one architecture under several names. Owns `model`, the policy `current`."""

    overlaps = False  # whether a launched pass is computed while the host continues

    def __init__(self, model: PreTrainedModel, *, num_rows: int, max_tokens: int) -> None:
        self._take(model, max_tokens=max_tokens)
        size = f"{num_rows} sequences of {max_tokens} tokens"
        with border(ConfigError, f"no memory for a cache of {size}; lower engine.max_cached or rollout.max_tokens"):
            self.cache = KeyValueCache(
                Shape.of(model), rows=num_rows, length=max_tokens, dtype=self.dtype, device=self.device
            )
        self.most_scored: float = math.inf  # tokens that `score` takes at once

    def at_home(self) -> AbstractContextManager[object]:
        """The context of the engine's thread: its kernels run on the device of the weights."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _take(self, model: PreTrainedModel, *, max_tokens: int, replay: Replay | None = None) -> None:
        model.requires_grad_(False)
        self._inference_layers = serve(model, max_tokens=max_tokens, replay=replay)
        self._models = {CURRENT: model}
        self.dtype, self.device = model.dtype, model.device
        self.vocab_size: int = model.config.get_text_config().vocab_size

    def spare(self) -> PreTrainedModel:
        """A model for one more policy, to be filled by `install`."""
        model = copy.deepcopy(self._models[CURRENT])
        if self._inference_layers:
            use_inference_layers(model)
        return model

    def add(self, name: str, model: PreTrainedModel) -> None:
        self._models[name] = model

    def model(self, policy: str) -> PreTrainedModel:
        if policy not in self._models:
            known = f"known: {', '.join(sorted(self._models))}.{nearest(policy, self._models)}"
            raise EngineFailed(f"policy {policy!r} is not served; {known} `add_policy` makes a new one.")
        return self._models[policy]

    def make_pages(self) -> Pages | None:
        """The memory that rows share; None where each has its own."""
        return None

    def warm(self) -> bool:
        """Prepares one thing that a later pass may need; False when nothing is left to prepare."""
        return False

    def shrink(self) -> bool:
        """Empties the cache and halves its memory; False where that is impossible."""
        return False

    def prepare(self, plan: Plan) -> None:
        """Carries out everything but the passes."""
        for source, target in plan.copies:
            self.cache.copy(source.row, target=target.row, count=source.count)

    def clear(self, held: Span) -> None:
        self.cache.clear(held.row, count=held.count)

    def launch(self, planned: Pass) -> Collect:
        """Computes the chunks, and draws tokens with their logprobs for those that sample."""
        assert planned.steps == 1, "several tokens at a time need a graph"
        sampling = [chunk for chunk in planned.chunks if chunk.samples]
        pieces = [Piece(chunk.row, chunk.start, chunk.width) for chunk in planned.chunks]
        layout = Layout(pieces, cache=self.cache, dtype=self.dtype, device=self.device)
        tokens = [token for chunk in planned.chunks for token in (*chunk.ids, *chunk.draft)]
        ids = torch.tensor(tokens, device=self.device)
        places = _drawn_places(planned.chunks)
        keep = None if len(places) == len(ids) else torch.tensor(places, dtype=torch.long, device=self.device)
        logits = forward(self._models[planned.policy], ids, layout=layout, keep=keep)
        if not sampling:
            return list
        draws = [(chunk.request, chunk.end + i) for chunk in sampling for i in range(len(chunk.draft) + 1)]
        uniforms = [uniform(request.origin, position) for request, position in draws]
        temperatures = [request.sampling.temperature for request, _ in draws]
        drawn = iter(draw(logits, temperatures=temperatures, uniforms=uniforms))
        accepted = [_accepted(chunk.draft, list(islice(drawn, len(chunk.draft) + 1))) for chunk in sampling]
        return lambda: accepted

    def score(self, ids: Sequence[int], *, policy: str, temperature: float) -> list[float]:
        logits = self._logits(ids, policy=policy)[:-1]
        logprobs = log_softmax(logits, temperatures=[temperature] * len(logits))
        chosen = logprobs.gather(-1, placed(torch.tensor(ids[1:]), self.device)[:, None])[:, 0]
        scores: list[float] = fetched(chosen).tolist()
        return scores

    def _logits(self, ids: Sequence[int], *, policy: str) -> Tensor:
        layout = Layout([Piece(None, 0, len(ids))], cache=None, dtype=self.dtype, device=self.device)
        return forward(self.model(policy), torch.tensor(ids, device=self.device), layout=layout)

    def install(self, policy: str, tensors: Mapping[str, Tensor]) -> None:
        """Copies `tensors`, which `check` found complete, in one operation: nothing is generated
        meanwhile, and between two operations another thread may take the interpreter."""
        weights = named_weights(self.model(policy))
        sources = [tensors[next(name for name in names if name in tensors)] for names, _ in weights]
        torch._foreach_copy_([weight for _, weight in weights], sources)

    def check(self, tensors: Mapping[str, Tensor], *, version: int) -> None:
        """Raises EngineFailed unless `tensors` fits exactly; one name of a tied weight suffices."""
        weights = named_weights(self._models[CURRENT])
        missing = [names[0] for names, _ in weights if not any(name in tensors for name in names)]
        extra = sorted(set(tensors).difference(*(names for names, _ in weights)))
        if missing or extra:
            raise EngineFailed(
                f"version {version} does not fit the model: missing {_some(missing)}; unknown {_some(extra)}. "
                "Nothing was loaded; publish the whole state dict of the same architecture."
            )
        for names, weight in weights:
            first, *others = [name for name in names if name in tensors]
            for name in (first, *others):
                got, expected = tuple(tensors[name].shape), tuple(weight.shape)
                if got != expected:
                    raise EngineFailed(
                        f"version {version}: {name} has shape {got}, expected {expected}. Nothing was loaded."
                    )
            for name in others:
                if not torch.allclose(tensors[name], tensors[first], rtol=0, atol=0, equal_nan=True):
                    raise EngineFailed(
                        f"version {version}: {first} and {name} are one weight in the engine's model, but differ. "
                        "Nothing was loaded; publish from a model that ties them too."
                    )


def named_weights(model: PreTrainedModel) -> list[tuple[list[str], Tensor]]:
    """Every weight with all its names; a tied weight has several."""
    groups: dict[int, tuple[list[str], Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        groups.setdefault(id(tensor), ([], tensor))[0].append(name)
    return list(groups.values())


def _drawn_places(chunks: Sequence[Chunk]) -> list[int]:
    """Where tokens are drawn: after the last token of a sampling chunk, and all of its draft."""
    places, first = list[int](), 0
    for chunk in chunks:
        if chunk.samples:
            places += range(first + chunk.count - 1, first + chunk.width)
        first += chunk.width
    return places


def _accepted(draft: tuple[int, ...], drawn: list[tuple[int, float]]) -> Drawn:
    """Up to the first token that differs from the draft: later ones saw a wrong prefix."""
    right = next((i for i, token in enumerate(draft) if drawn[i][0] != token), len(draft))
    tokens, logprobs = zip(*drawn[: right + 1], strict=True)
    return tokens, logprobs


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "nothing"
