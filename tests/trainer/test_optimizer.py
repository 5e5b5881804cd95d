import torch

from ludus.trainer.optimizer import Masters, make_optimizer

BF16 = torch.bfloat16


def make_masters(dtype):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2, bias=False)
    return model, Masters(model, dtype=dtype)


def test_gradients_are_summed_in_float32_and_are_there_once():
    model, masters = make_masters(BF16)
    for _ in range(300):
        model(torch.ones(1, 3, dtype=BF16)).sum().backward()
    masters.take_gradients()
    (master,) = masters.parameters()
    assert master.grad is model.weight.grad
    assert master.grad.tolist() == [[300.0] * 3] * 2, "in bfloat16, 256 + 1 is 256"


def test_small_updates_add_up_in_the_masters_and_reach_the_model_when_they_are_large_enough():
    model, masters = make_masters(BF16)
    optimizer = make_optimizer(masters, lr=1e-5, betas=(0.9, 0.95), weight_decay=0.0)
    before = model.weight.detach().clone()
    unmoved = []
    for _ in range(300):
        model(torch.ones(1, 3, dtype=BF16)).sum().backward()
        masters.take_gradients()
        optimizer.step()
        masters.copy_back()
        masters.forget_gradients()
        unmoved.append(torch.equal(model.weight, before))
    assert unmoved[0]
    assert (before - model.weight).float().mean().item() > 0.0025, "300 steps of 1e-5 downwards"


def test_in_float32_the_masters_are_the_model_itself():
    model, masters = make_masters(torch.float32)
    assert masters.parameters()[0] is model.weight
    model(torch.ones(1, 3)).sum().backward()
    assert model.weight.grad is not None


def test_the_optimisers_memory_is_there_before_the_first_step():
    _, masters = make_masters(BF16)
    optimizer = make_optimizer(masters, lr=1e-5, betas=(0.9, 0.95), weight_decay=0.0)
    (master,) = masters.parameters()
    assert {key: value.shape for key, value in optimizer.state[master].items()} == {
        "step": torch.Size([]),
        "exp_avg": master.shape,
        "exp_avg_sq": master.shape,
    }
