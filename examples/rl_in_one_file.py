"""A language-model agent learns a game by reinforcement learning: the whole idea in one file.

    python examples/rl_in_one_file.py [STEPS]       # 300 steps: about a minute on one CPU core

A tiny Llama, made from scratch, plays a guessing game of several turns. First it clones a scripted
policy with random mistakes. Then it learns from its own sessions with GRPO (2402.03300): play a
task several times, and make the tokens of the better attempts more likely.

Nothing of Ludus is imported. The terms are those of `src/ludus`, and each part names its
counterpart there. Ludus adds: any model and chat template, many environments, playing and training
at the same time, versions of tokens, a key-value cache, sessions that fail, and resumed runs.
"""

import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from transformers import LlamaConfig, LlamaForCausalLM

LARGEST, MAX_TURNS, MAX_TURN_TOKENS = 20, 4, 2
GROUP_SIZE, GROUPS_PER_STEP, MAX_STALENESS = 8, 16, 1
CLONING_LR, LR, MAX_GRAD_NORM, IMPORTANCE_CAP = 3e-3, 2e-3, 1.0, 2.0

# ------------------------------------------------------------ vocabulary: models/loading/tiny.py

END = "<end>"
WORDS = [END, "to", "found", "invalid", *map(str, range(1, LARGEST + 1))]
ID = {word: index for index, word in enumerate(WORDS)}


def encode(text: str) -> list[int]:
    return [ID[word] for word in text.split()]


def decode(ids: list[int]) -> str:
    return " ".join(WORDS[index] for index in ids)


# ------------------------------------------------------------ environment: worlds/guess.py


@dataclass(frozen=True)
class Task:
    """One problem, as plain data. Bisection always finds the secret within MAX_TURNS."""

    low: int
    high: int
    secret: int


def make_tasks() -> dict[str, list[Task]]:
    """All possible tasks, shuffled and split: none is both trained on and tested on."""
    ranges = [(low, low + n - 1) for n in range(9, 16) for low in range(1, LARGEST - n + 2)]
    tasks = [Task(low, high, secret) for low, high in ranges for secret in range(low, high + 1)]
    random.Random(0).shuffle(tasks)
    return {"test": tasks[:200], "train": tasks[200:]}


class Session:
    """One attempt at a task. It handles text, never tokens."""

    def __init__(self, task: Task) -> None:
        self.secret, self.low, self.high = task.secret, task.low, task.high

    def start(self) -> str:
        return f"{self.low} to {self.high}"

    def act(self, action: str) -> tuple[str, float, bool]:
        """The observation, the reward, and whether the session is done."""
        word, _, rest = action.partition(" ")
        if not word.isdigit() or rest != END:
            return "invalid", 0.0, False  # an observation and a lost turn, not a crash
        number = int(word)
        if number == self.secret:
            return "found", 1.0, True
        self.low = max(self.low, number + 1) if number < self.secret else self.low
        self.high = min(self.high, number - 1) if number > self.secret else self.high
        return self.start(), 0.0, False


# ------------------------------------------------------------ trajectory: types.py, rollout/chat.py


@dataclass
class Trajectory:
    """A session, token by token, in lists of equal length that only grow. `sampled` is the loss
    mask, set when a token arrives and never derived from text afterwards. `logprobs` are those of
    the weights that sampled the token, 0 for the environment's tokens."""

    ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reward: float = 0.0
    advantage: float = 0.0

    def extend(self, ids: list[int], *, sampled: bool, logprob: float = 0.0) -> None:
        self.ids += ids
        self.sampled += [sampled] * len(ids)
        self.logprobs += [logprob] * len(ids)


# ------------------------------------------------------------ playing: engines/, rollout/play.py

Pairs = list[tuple[Session, Trajectory]]


def play(tasks: list[Task], *, sample: Callable[[Pairs], None]) -> list[Trajectory]:
    """Plays one session per task, all side by side. `sample` adds an action to every trajectory."""
    pairs = [(Session(task), Trajectory()) for task in tasks]
    trajectories = [trajectory for _, trajectory in pairs]
    for session, trajectory in pairs:
        trajectory.extend(encode(session.start()), sampled=False)
    for _ in range(MAX_TURNS):
        lengths = [len(trajectory.ids) for _, trajectory in pairs]
        sample(pairs)
        live = []
        for (session, trajectory), start in zip(pairs, lengths, strict=True):
            observation, reward, done = session.act(decode(trajectory.ids[start:]))
            trajectory.extend(encode(observation), sampled=False)
            trajectory.reward += reward
            live += [(session, trajectory)] * (not done)
        pairs = live
    return trajectories


@torch.no_grad()
def generate(pairs: Pairs, *, model: LlamaForCausalLM) -> None:
    """Samples an action for all sessions at once, token by token, each until END."""
    unfinished = [trajectory for _, trajectory in pairs]
    for _ in range(MAX_TURN_TOKENS):
        if not unfinished:
            return
        last_B = torch.tensor([len(t.ids) - 1 for t in unfinished])
        logits_BV = model(pad([t.ids for t in unfinished])).logits[torch.arange(len(unfinished)), last_B]
        choice_B = torch.distributions.Categorical(logits=logits_BV)
        tokens_B = choice_B.sample()  # no top-k, no top-p: the logprob kept must be that of the draw
        logprobs_B = choice_B.log_prob(tokens_B)
        for trajectory, token, logprob in zip(unfinished, tokens_B.tolist(), logprobs_B.tolist(), strict=True):
            trajectory.extend([token], sampled=True, logprob=logprob)
        unfinished = [t for t in unfinished if t.ids[-1] != ID[END]]


def pad(rows: list[list[int]] | list[list[bool]] | list[list[float]]) -> torch.Tensor:
    """(B, T), padded with 0 on the right, which needs no attention mask in a causal model."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


# ------------------------------------------------------------ warm start: trainer/sft.py


def play_badly(pairs: Pairs, *, rng: random.Random) -> None:
    """A scripted policy: every action is well formed, but half of the guesses are any number."""
    for session, trajectory in pairs:
        low, high = (1, LARGEST) if rng.random() < 0.5 else (session.low, session.high)
        trajectory.extend(encode(f"{rng.randint(low, high)} {END}"), sampled=True)


def clone(model: LlamaForCausalLM, tasks: list[Task], *, steps: int, rng: random.Random) -> None:
    """Behaviour cloning: raises the logprob of the scripted policy's tokens alone."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=CLONING_LR, weight_decay=0.0)
    for _ in range(steps):
        batch = play(rng.choices(tasks, k=64), sample=partial(play_badly, rng=rng))
        logprobs_BT, mask_BT = logprobs_and_mask(model, batch)
        take_step(model, optimizer, loss=-(logprobs_BT * mask_BT).sum() / mask_BT.sum())


# ------------------------------------------------------------ GRPO: algorithms/grpo.py, trainer/


def logprobs_and_mask(model: LlamaForCausalLM, batch: list[Trajectory]) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's logprob, with gradient, and whether it was sampled; the first token has none."""
    ids_BT = pad([t.ids for t in batch])
    logprobs_BTV = model(ids_BT).logits[:, :-1].log_softmax(-1)
    return logprobs_BTV.gather(-1, ids_BT[:, 1:, None])[..., 0], pad([t.sampled for t in batch])[:, 1:]


def make_batch(groups: list[list[Trajectory]]) -> list[Trajectory]:
    """The advantage is the reward normalised within its group; without variance there is none."""
    for group in groups:
        rewards_G = torch.tensor([t.reward for t in group])
        advantages_G = (rewards_G - rewards_G.mean()) / rewards_G.std(correction=0).clamp(min=1e-6)
        for trajectory, advantage in zip(group, advantages_G.tolist(), strict=True):
            trajectory.advantage = advantage
    return [t for group in groups for t in group if t.advantage]


def grpo_loss(model: LlamaForCausalLM, batch: list[Trajectory]) -> torch.Tensor:
    """Minus the mean of w r A over sampled tokens. r = p / p_old is 1 and carries the gradient;
    w = min(p_old / p_behaviour, cap) corrects for tokens of older weights. PPO's clip is left out:
    with one step per batch it has no effect."""
    logprobs_BT, mask_BT = logprobs_and_mask(model, batch)
    old_BT, behaviour_BT = logprobs_BT.detach(), pad([t.logprobs for t in batch])[:, 1:]
    importance_BT = (old_BT - behaviour_BT).exp().clamp(max=IMPORTANCE_CAP)
    advantages_B1 = torch.tensor([[t.advantage] for t in batch])
    return -(importance_BT * (logprobs_BT - old_BT).exp() * advantages_B1 * mask_BT).sum() / mask_BT.sum()


def take_step(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, *, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
    optimizer.step()


def train(model: LlamaForCausalLM, tasks: list[Task], *, steps: int, rng: random.Random) -> None:
    """Plays enough for MAX_STALENESS + 1 steps at a time, so that no group is staler than that."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(steps):
        if step % (MAX_STALENESS + 1) == 0:
            drawn = rng.sample(tasks, GROUPS_PER_STEP * (MAX_STALENESS + 1))
            played = play([task for task in drawn for _ in range(GROUP_SIZE)], sample=partial(generate, model=model))
            buffer = [played[i : i + GROUP_SIZE] for i in range(0, len(played), GROUP_SIZE)]
        groups, buffer = buffer[:GROUPS_PER_STEP], buffer[GROUPS_PER_STEP:]
        if batch := make_batch(groups):
            take_step(model, optimizer, loss=grpo_loss(model, batch))
        if (step + 1) % 20 == 0:
            print(f"step {step + 1:3d}  success {sum(t.reward for t in played) / len(played):.2f}", flush=True)


# ------------------------------------------------------------ the run: evaluation/, launch/train.py


def success(model: LlamaForCausalLM, tasks: list[Task]) -> str:
    """Held-out success with its 95 % interval (Wilson)."""
    n, z = len(tasks), 1.96
    rate = sum(t.reward for t in play(tasks, sample=partial(generate, model=model))) / n
    centre, spread = rate + z * z / (2 * n), z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    low, high = (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)
    return f"{rate:.2f} [{low:.2f}, {high:.2f}] on {n} held-out tasks"


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng, tasks = random.Random(0), make_tasks()
    size = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig.from_dict({"vocab_size": len(WORDS), "initializer_range": 0.1, **size}))
    clone(model, tasks["train"], steps=100, rng=rng)
    print(f"before: {success(model, tasks['test'])}", flush=True)
    train(model, tasks["train"], steps=int(sys.argv[1]) if sys.argv[1:] else 300, rng=rng)
    print(f"after:  {success(model, tasks['test'])}")


if __name__ == "__main__":
    main()
