"""ArCHer's critic against the exact values of a small problem, off-policy, and its turns as a trainer finds them in trajectories."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from ludus.config import CriticConfig, TrainerConfig
from ludus.errors import CheckpointFailed
from ludus.trainer.critics.archer import Archer
from ludus.trainer.critics.double import DoubleCritic, Scale, Turns
from ludus.trainer.local import cpu_threads
from tests.algorithms.examples import make_conversation
from tests.algorithms.problems import ARMS, FIRST, SECOND, table
from tests.trainer.examples import make_model, make_trainer

DISCOUNT = 0.9


@pytest.fixture(autouse=True)
def _one_thread():
    """As in a trainer: many small updates on several threads wait for each other."""
    with cpu_threads(1):
        yield


STATES, ACTIONS = torch.eye(3), torch.eye(2)
"""Of the walk: the start, and after arm 0 or 1; and its arms."""


def policy(chances, *, many=32):
    """Turns of the walk in the shares that these chances of arm 1, by state, make: nothing is left to luck."""
    rows = []
    for a in ARMS:
        for b in ARMS:
            chance = (chances[0] if a else 1 - chances[0]) * (chances[1 + a] if b else 1 - chances[1 + a])
            first = (STATES[0], ACTIONS[a], FIRST[a], STATES[1 + a], 0.0)
            second = (STATES[1 + a], ACTIONS[b], SECOND[a][b], torch.zeros(3), 1.0)
            rows += [first, second] * round(chance * many)
    states, actions, rewards, nexts, done = zip(*rows, strict=True)
    return Turns(
        torch.stack(states), torch.stack(actions), torch.tensor(rewards), torch.stack(nexts), torch.tensor(done)
    )


def exact(chances):
    """(Q of the start by arm, V by state) under these chances."""
    after = [sum((p, 1 - p)[1 - b] * SECOND[a][b] for b in ARMS) for a, p in enumerate(chances[1:])]
    q = [FIRST[a] + DISCOUNT * after[a] for a in ARMS]
    return q, [(1 - chances[0]) * q[0] + chances[0] * q[1], *after]


def make_critic(seed=0):
    return DoubleCritic(state=3, action=2, lr=5e-3, discount=DISCOUNT, target_rate=0.1, seed=seed)


CURRENT, OLDER = (0.75, 0.5, 0.25), (0.25, 0.25, 0.75)


def test_the_critic_finds_the_exact_values_of_the_current_policy_from_an_older_ones_replay():
    fresh, replay, critic = policy(CURRENT), policy(OLDER), make_critic()
    for _ in range(500):
        critic.learn(replay, fresh, batch=10_000)
    q, v = exact(CURRENT)
    one = torch.ones(2)
    turns = Turns(STATES[[0, 0]], ACTIONS, 0 * one, torch.zeros(2, 3), one)
    for j in "12":
        assert critic._q(critic.networks, j, turns).tolist() == pytest.approx(q, abs=0.02)
        assert critic._v(critic.networks, j, STATES).tolist() == pytest.approx(v, abs=0.02)
    assert critic.advantages(turns).tolist() == pytest.approx([q[0] - v[0], q[1] - v[0]], abs=0.03)
    assert exact(OLDER)[1][0] != pytest.approx(v[0], abs=0.05), "the older policy's values are others"


def test_a_new_critic_finds_every_action_alike_and_an_update_moves_targets_by_their_rate():
    critic, turns = make_critic(), policy(CURRENT)
    assert not critic.advantages(turns).any()
    before = [p.clone() for p in critic.targets.parameters()]
    critic.learn(turns, turns, batch=64)
    for old, target, own in zip(before, critic.targets.parameters(), critic.networks.parameters(), strict=True):
        assert torch.allclose(target, 0.9 * old + 0.1 * own, atol=1e-7)


def test_only_the_newest_turns_stay():
    turns = policy(CURRENT, many=8)
    kept = turns.followed_by(turns.pick(torch.tensor([0, 1, 2])), most=5)
    assert len(kept) == 5
    assert torch.equal(kept.rewards[-3:], turns.rewards[:3])


def test_on_one_scale_every_feature_varies_alike_and_what_never_varied_is_not_blown_up():
    generator = torch.Generator().manual_seed(0)
    ripple = 7 + 0.1 * torch.randn(200, 3, generator=generator)
    noise = 7 + 1e-4 * torch.randn(200, 2, generator=generator)
    scaled = Scale.of(turns := Turns(ripple, noise, torch.ones(200), ripple, torch.zeros(200)))(turns)
    assert scaled.states.mean(0).tolist() == pytest.approx([0] * 3, abs=1e-4)
    assert scaled.states.std(0).tolist() == pytest.approx([1] * 3, abs=0.5)
    assert torch.equal(scaled.nexts, scaled.states), "a state is read alike before a turn and after one"
    assert scaled.actions.abs().max() < 0.01
    assert torch.equal(scaled.rewards, turns.rewards)
    alone = turns.pick(torch.tensor([0]))
    assert not Scale.of(alone)(alone).states.any()


# ------------------------------------------------------------------------------------------------ in a trainer

TALKS = [make_conversation([[1, 2], [3, 4, 5]], [0.5, 1.0], name="a"), make_conversation([[6]], [0.0], name="b")]


def make_archer(**knobs):
    config = CriticConfig(kind="archer", lr=1e-2, **{"steps": 5} | knobs)
    return Archer(config, encoder=make_model(), trainer=TrainerConfig(), discount=DISCOUNT, seed=1)


def test_turns_are_read_from_trajectories_with_the_state_before_them_and_the_whole_action():
    archer = make_archer()
    values = archer.values(TALKS)
    replay = archer.replay
    assert replay.rewards.tolist() == [0.5, 1.0, 0.0]
    assert replay.done.tolist() == [0, 1, 1]
    assert torch.equal(replay.nexts[0], replay.states[1])
    model = make_model().eval()
    ids = torch.tensor(TALKS[0].sequences[0].ids.astype(np.int64)).unsqueeze(0)  # prompt 1 2 prompt 3 4 5
    hidden = model.base_model(input_ids=ids)[0][0]
    assert torch.allclose(replay.states[:2], hidden[[0, 3]], atol=1e-5)
    embedded = model.get_input_embeddings().weight[[2, 5]]
    assert torch.allclose(replay.actions[:2], torch.cat([hidden[[1, 5]], embedded], dim=1), atol=1e-5)
    assert [len(own) for own in values] == [5, 1]
    assert values[0][0] == values[0][1] != values[0][2] == values[0][4], "every token of a turn has its worth"


def test_over_rounds_it_tells_a_good_action_from_a_bad_one():
    good, bad = (make_conversation([[token]], [reward]) for token, reward in ((1, 1.0), (2, 0.0)))
    archer = make_archer(steps=30)
    for _ in range(5):
        values = archer.values([good, bad])
    assert values[0][0] > 0.25
    assert values[1][0] < -0.25


def test_a_baseline_praises_no_token_for_what_was_certain_before_it_and_learns_only_after_it_was_asked():
    """Both turns begin alike, the second token decides, and the third follows from it."""
    good, bad = (make_conversation([[7, token, 3]], [reward]) for token, reward in ((1, 1.0), (2, 0.0)))
    plain, archer = make_archer(steps=30), make_archer(steps=30, baseline=True)
    without, first = plain.values([good, bad]), archer.values([good, bad])
    assert [own.tolist() for own in first] == [own.tolist() for own in without], "it knew nothing yet"
    for _ in range(8):
        without, got = plain.values([good, bad]), archer.values([good, bad])
    assert without[0][1] == without[0][2] > 0.25, "without it every token of a turn has its worth"
    assert got[0][1] > 0.25
    assert got[1][1] < -0.25
    assert abs(got[0][2]) < 0.1
    assert abs(got[1][2]) < 0.1
    assert archer.step(None)["archer_baseline_loss"] < 0.5


END = 9
"""The token that every action ends with, as a model's do."""


def alike():
    """A model whose hidden states are almost the same everywhere, as a trained one's are before the last token of any action."""
    model = make_model()
    embeddings = model.get_input_embeddings().weight
    with torch.no_grad():
        embeddings.mul_(0.05 / embeddings.std()).add_(1.0)
    return model


def sessions(chances, *, many=32):
    """Sessions of the walk in the shares that these chances make."""
    return [
        make_conversation([[1 + a, END], [3 + 2 * a + b, END]], [FIRST[a], SECOND[a][b]])
        for a in ARMS
        for b in ARMS
        for _ in range(
            round(many * (chances[0] if a else 1 - chances[0]) * (chances[1 + a] if b else 1 - chances[1 + a]))
        )
    ]


@pytest.fixture(scope="module")
def judged():
    """Sessions of the current policy, and what their tokens are worth after a few rounds, in which an older policy's came first."""
    config = CriticConfig(kind="archer", lr=3e-3, steps=50, batch=64)
    archer = Archer(config, encoder=alike(), trainer=TrainerConfig(), discount=DISCOUNT, seed=1)
    played = sessions(CURRENT)
    with cpu_threads(1):
        archer.values(sessions(OLDER))
        return played, [archer.values(played) for _ in range(5)][-1]


def test_turns_that_a_model_hardly_tells_apart_have_their_exact_advantages(judged):
    q, v = exact(CURRENT)
    for trajectory, worth in zip(*judged, strict=True):
        first, _, second, _ = trajectory.sequences[0].ids[trajectory.sequences[0].sampled]
        a = first - 1
        b = second - 3 - 2 * a
        now, later = q[a] - v[0], SECOND[a][b] - v[1 + a]
        assert worth.tolist() == pytest.approx([now, now, later, later], abs=0.03)


def test_the_gradient_from_its_advantages_is_the_true_one(judged):
    """Of a policy of three chances of arm 1 (`table`), with each turn's return discounted from that turn on."""
    q, _ = exact(CURRENT)
    slopes = [p * (1 - p) for p in CURRENT]
    reach = [1.0, 1 - CURRENT[0], CURRENT[0]]
    gains = [q[1] - q[0], SECOND[0][1] - SECOND[0][0], SECOND[1][1] - SECOND[1][0]]
    true = [share * slope * gain for share, slope, gain in zip(reach, slopes, gains, strict=True)]
    logits = torch.tensor([math.log(p / (1 - p)) for p in CURRENT], requires_grad=True)
    logprobs, played = table(logits), judged[0]
    for trajectory, worth in zip(*judged, strict=True):
        first, _, second, _ = trajectory.sequences[0].ids[trajectory.sequences[0].sampled]
        (worth[0] * logprobs[first] + worth[2] * logprobs[second]).div(len(played)).backward(retain_graph=True)
    assert logits.grad.tolist() == pytest.approx(true, abs=0.01)


def test_what_said_nothing_has_no_turns():
    silent = replace(TALKS[1], sequences=())
    assert [own.tolist() for own in make_archer().values([silent])] == [[]]


def test_restored_it_goes_on_bit_for_bit_replay_and_all(tmp_path):
    trainer, resumed = make_trainer(), make_trainer()
    trainer._critic, resumed._critic = make_archer(baseline=True), make_archer(baseline=True)
    trainer.values(TALKS)
    folder = trainer.save(tmp_path, state={}, keep=1)
    resumed.restore(folder)
    for ours, theirs in zip(trainer.values(TALKS), resumed.values(TALKS), strict=True):
        assert ours.tolist() == theirs.tolist()
    plain = make_trainer().save(tmp_path / "plain", state={}, keep=1)
    with pytest.raises(CheckpointFailed, match=r"no archer\.safetensors.*critic\.kind"):
        resumed.restore(plain)
