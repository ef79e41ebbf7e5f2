"""Averaged weights are followed, whatever keeps them, and nothing else is."""

import pytest

from tests.probe.loops import ADAM, HEAD, LOOP, steps

AVERAGED = {
    "AveragedModel": (
        "avg = torch.optim.swa_utils.AveragedModel(net)\n",
        "avg.update_parameters(net)",
    ),
    "frozen twin": (
        "avg = copy.deepcopy(net).requires_grad_(False)\n",
        "[a.lerp_(p.detach(), 0.1) for a, p in zip(avg.parameters(), net.parameters())]",
    ),
    "shadow dict": (
        """
class EMA:
    def __init__(self):
        self.shadow = {n: p.detach().clone() for n, p in net.named_parameters()}
    def update(self):
        for n, p in net.named_parameters():
            self.shadow[n].lerp_(p.detach(), 0.1)
avg = EMA()
""",
        "avg.update()",
    ),
    "module that holds both": (
        """
class EMA(nn.Module):
    def __init__(self):
        super().__init__()
        self.online_model = net
        self.ema_model = copy.deepcopy(net).requires_grad_(False)
    def update(self):
        for a, p in zip(self.ema_model.parameters(), self.online_model.parameters()):
            a.lerp_(p.detach(), 0.1)
avg = EMA()
""",
        "avg.update()",
    ),
}


@pytest.mark.parametrize("kind", AVERAGED)
def test_averages_are_followed(quick, kind):
    make, update = AVERAGED[kind]
    loop = LOOP.format(start=0, stop=4).rstrip() + f"\n    {update}\n"
    ran = quick(HEAD + ADAM + make + loop)
    assert None not in ran.column("averages")
    assert len(set(ran.column("averages"))) >= 4


def test_a_module_that_holds_an_average_does_not_change_the_names(quick):
    make, _ = AVERAGED["module that holds both"]
    plain, held = quick(HEAD + ADAM + steps()), quick(HEAD + make + ADAM + steps())
    for component in ("weights", "optimizer", "buffers"):
        assert held.column(component) == plain.column(component), component
    # One whose type does not say so is the model: what it holds is saved with it.
    named_otherwise = make.replace("EMA", "Contrast")
    assert quick(HEAD + named_otherwise + ADAM + steps()).states()[0]["names"] == {
        "weights": 12,
        "buffers": 6,
    }


def test_a_copy_that_is_alive_by_accident_is_no_average(quick):
    ran = quick(
        HEAD + ADAM + "best = copy.deepcopy(net)\nalso = nn.Linear(8, 16)\n" + steps()
    )
    assert set(ran.column("averages")) == {None}


def test_a_copy_that_is_saved_or_was_read_is_no_average(quick):
    make, update = AVERAGED["frozen twin"]
    loop = LOOP.format(start=0, stop=4).rstrip() + f"\n    {update}\n"
    plain = quick(HEAD + ADAM + make + loop)
    # As of programs that put whole modules into a checkpoint and keep it in a variable.
    late = "    if step == 1: kept = dict(ema=copy.deepcopy(avg))\n"
    assert quick(HEAD + ADAM + make + loop + late).column("averages") == plain.column(
        "averages"
    )
    read = "torch.save(avg, 'a.pt'); ck = torch.load('a.pt', weights_only=False)\n"
    ran = quick(HEAD + ADAM + make + read + loop)
    assert ran.column("averages") == plain.column("averages")


def test_an_average_that_was_read_is_followed_like_one_that_was_made(quick):
    make, update = AVERAGED["frozen twin"]
    loop = LOOP.format(start=0, stop=4).rstrip() + f"\n    {update}\n"
    plain = quick(HEAD + ADAM + make + loop)
    read = "torch.save(avg, 'a.pt'); avg = torch.load('a.pt', weights_only=False)\n"
    ran = quick(HEAD + ADAM + make + read + loop)
    assert ran.column("averages") == plain.column("averages")
