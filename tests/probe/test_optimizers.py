"""Which optimizers are part of the state, and how what they train is known."""

import pytest

from spotchaos.model import Attempt, Ended
from spotchaos.trace.lookup import line_of
from spotchaos.trace.reading import read_attempt
from spotchaos.trace.training_phases import spelled_as
from tests.probe.loops import ADAM, HEAD, steps

# As Pyro does: an optimizer for each tensor, made in the order of a set at the first step.
LOOSE = """
import sys, torch
torch.manual_seed(0)
trained = [torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)]
optimizers = {}
def step(x):
    (trained[0] * x + trained[1] * x.square()).square().sum().backward()
    for place in order:
        opt = optimizers.setdefault(place, torch.optim.Adam([trained[place]], 0.1))
        opt.step(); opt.zero_grad()
"""


def test_an_optimizer_for_each_tensor_may_be_made_in_any_order(quick):
    run = "for n in range(3): step(torch.full((3,), n + 1.0))\n"
    one, other = (
        quick(LOOSE + f"order = {order}\n" + run, main_optimizer=1)
        for order in ([0, 1], [1, 0])
    )
    assert len(one.steps) == len(other.steps) == 3
    for component in ("weights", "optimizer", "rates"):
        assert one.column(component) == other.column(component), component
        assert len({*one.column(component)} - {None}) > (component != "rates")
    assert one.consumed("gradients") == other.consumed("gradients")
    assert len(set(one.consumed("gradients"))) == 3


def test_tensors_that_have_no_optimizer_as_yet_are_known_again(quick):
    run = "for n in range({}, {}): step(torch.full((3,), n + 1.0))\n"
    save = "torch.save(trained, 'a.pt')\n"
    load = "trained = [t.detach().requires_grad_() for t in torch.load('a.pt')]\n"
    head = LOOSE + "order = [0, 1]\n"
    whole = quick(head + run.format(0, 3) + save + run.format(3, 5), main_optimizer=1)
    resumed = quick(
        LOOSE + "order = [1, 0]\n" + load + run.format(3, 5), main_optimizer=1
    )
    assert resumed.column("weights")[0] == whole.column("weights")[3]
    assert len(set(whole.column("weights"))) == 5


TAUGHT = """
import torch
torch.manual_seed(0)
teacher, student = torch.nn.Linear(2, 5), torch.nn.Linear(2, 5)
def train(net, opt, step):
    x = torch.full((3, 2), step + 1.0)
    opt.zero_grad(); (net(x) - teacher(x).detach()).square().mean().backward(); opt.step()
def teach():
    global first
    first = torch.optim.Adam(teacher.parameters(), 0.1)
    first.schedule = torch.optim.lr_scheduler.StepLR(first, 1)
    for step in range(2):
        first.zero_grad(); teacher(torch.ones(1, 2)).sum().backward(); first.step()
    torch.save(teacher.state_dict(), "teacher.pt")
"""
LEARN = """
opt = torch.optim.Adam(student.parameters(), 0.1)
schedule = torch.optim.lr_scheduler.StepLR(opt, 1)
for step in range(3): train(student, opt, step)
"""


@pytest.mark.parametrize(
    ("frozen", "alike"),
    [("teacher.eval().requires_grad_(False)", True), ("", False)],
)
def test_a_teacher_that_is_frozen_and_evaluates_is_no_part_of_the_state(
    quick, frozen, alike
):
    whole = quick(TAUGHT + "teach()\n" + frozen + LEARN, main_optimizer=1)
    load = "teacher.load_state_dict(torch.load('teacher.pt'))\n"
    again = quick(TAUGHT + load + frozen + LEARN)
    assert (len(whole.steps), len(again.steps)) == (5, 3)
    for component in ("weights", "optimizer", "rates", "scheduler"):
        same = whole.column(component)[2:] == again.column(component)
        assert same is alike, component


def test_a_network_that_is_frozen_while_the_other_trains_is_in_the_state(quick):
    pair = """
a, b = torch.optim.Adam(teacher.parameters(), 0.1), torch.optim.Adam(student.parameters(), 0.1)
for step in range(3):
    teacher.requires_grad_(False)
    student(torch.ones(1, 2)).sum().backward(); b.step(); b.zero_grad()
    teacher.requires_grad_({unfrozen})
    teacher(torch.full((1, 2), step + 1.0)).square().sum().backward(); a.step(); a.zero_grad()
"""
    ran = quick(TAUGHT + pair.format(unfrozen=True), main_optimizer=0)
    assert ran.states()[0]["names"]["weights"] == 4
    assert len({*ran.column("weights")}) == 3


def test_an_optimizer_that_another_took_the_place_of_is_no_part_of_the_state(quick):
    made = """
opt = torch.optim.AdamW(net.parameters(), 1e-2)
sched = torch.optim.lr_scheduler.StepLR(opt, 2)
"""
    # As a program does that loads whole objects: the pair holds itself in a cycle.
    again = "net = copy.deepcopy(net)\n" + made
    once, twice = quick(HEAD + made + steps()), quick(HEAD + made + again + steps())
    for component in ("weights", "optimizer", "rates", "scheduler"):
        assert twice.column(component) == once.column(component)


def test_an_optimizer_that_searched_for_a_rate_is_idle_beside_the_one_that_trains(
    quick,
):
    search = """
kept = copy.deepcopy(net.state_dict()); rng = torch.get_rng_state()
search = torch.optim.SGD(net.parameters(), 1e-3)
decay = torch.optim.lr_scheduler.ExponentialLR(search, 2.0)
for _ in range(3):
    net(x[:8]).square().mean().backward()
    search.step(); decay.step(); search.zero_grad()
net.load_state_dict(kept); torch.set_rng_state(rng)
"""
    plain = quick(HEAD + ADAM + steps())
    searched = quick(HEAD + search + ADAM + steps(), main_optimizer=1)
    assert len(searched.steps) == 9
    for component in ("weights", "optimizer", "rates", "scheduler"):
        assert searched.column(component)[3:] == plain.column(component)
    # Wrapper and wrapped share their groups, and both are at work.
    wrapped = """
class Outer(torch.optim.Optimizer):
    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner, self.param_groups = inner, inner.param_groups
    def step(self, closure=None):
        self.inner.step()
opt = Outer(torch.optim.AdamW(net.parameters(), 1e-2))
"""
    ran = quick(HEAD + wrapped + steps())
    assert len(set(ran.column("optimizer"))) == len(ran.states())


def test_a_view_of_an_optimizer_is_not_one_more(quick):
    """As Lightning's wrapper for manual optimization, which appears at its first step."""
    view = """
class View(torch.optim.Optimizer):
    def __init__(self, inner):
        self.__dict__ = {**inner.__dict__, "inner": inner}
    def step(self, closure=None):
        self.inner.step()
inner = opt
"""
    late = steps(0, 2) + "opt = View(inner)\n" + steps(2, 6)
    plain, viewed = quick(HEAD + ADAM + steps()), quick(HEAD + ADAM + view + late)
    for component in ("weights", "optimizer", "rates"):
        assert viewed.column(component) == plain.column(component)


def test_a_resume_that_makes_one_optimizer_fewer_is_counted_by_the_one_it_has(quick):
    ran = quick(HEAD + ADAM + steps(), main_optimizer=1)
    assert len(ran.steps) == 6


PHASES = """
import torch
torch.manual_seed(0)
teacher = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.BatchNorm1d(5))
student = torch.nn.Linear(2, 5)
x = torch.arange(12.0).reshape(6, 2)
def teach():
    first = torch.optim.SGD(teacher.parameters(), 0.1, momentum=0.9)
    for step in range(2):
        first.zero_grad(); teacher(x).square().sum().backward(); first.step()
    return first
def learn(steps):
    for step in steps:
        wanted = teacher(x + step).detach()
        opt.zero_grad(); (student(x + step) - wanted).square().mean().backward(); opt.step()
"""
SECOND = "opt = torch.optim.Adam(student.parameters(), 0.1)\n"


@pytest.mark.parametrize(
    "resumed",
    [
        pytest.param(SECOND, id="no-optimizer-for-the-teacher"),
        pytest.param(
            "first = torch.optim.SGD(teacher.parameters(), 0.1, momentum=0.9)\n"
            + SECOND,
            id="one-that-is-not-used",
        ),
    ],
)
def test_a_teacher_that_was_trained_first_is_no_part_of_the_state(quick, resumed):
    whole = quick(
        PHASES + "first = teach()\n" + SECOND + "learn(range(4))\n", main_optimizer=1
    )
    load = (
        PHASES + resumed + "teacher.load_state_dict(torch.load('t.pt'))\n"
        "state = torch.load('s.pt'); student.load_state_dict(state[0])\n"
        "opt.load_state_dict(state[1])\n"
    )
    quick(
        PHASES
        + "first = teach()\ntorch.save(teacher.state_dict(), 't.pt')\n"
        + SECOND
        + "learn(range(2))\n"
        "torch.save([student.state_dict(), opt.state_dict()], 's.pt')\n"
    )
    again = quick(load + "learn(range(2, 4))\n", main_optimizer=1)
    line = line_of(read_attempt(whole.trace)).ranks[0]
    told = spelled(read_attempt(again.trace), line)
    for component in ("weights", "optimizer", "rates"):
        for step in (0, 1):
            value = told.states[step].components[component]
            assert value == line.states[4 + step].components[component], component
    assert whole.consumed("gradients")[4:] == again.consumed("gradients")
    assert told.finish.components["weights"] == line.finish.components["weights"]


def spelled(trace, line):
    attempt = Attempt(2, (), Ended.FINISHED, 0, trace, 1.0)
    return spelled_as({0: line.table}, attempt).trace.ranks[0]


BY_EPOCHS = """
import torch
torch.manual_seed(0)
made, told = torch.nn.Linear(2, 2), torch.nn.Linear(2, 3)
first = torch.optim.Adam(told.parameters(), 0.1)
second = torch.optim.Adam(made.parameters(), 0.1)
parts = [made, told, first, second]
def epoch(number):
    opt = second if number % 2 else first
    for step in range(2):
        x = torch.full((3, 2), number + step / 2)
        opt.zero_grad(); told(made(x)).square().mean().backward(); opt.step()
def run(epochs):
    for number in epochs:
        epoch(number)
        torch.save([part.state_dict() for part in parts], f"{number}.pt")
"""


@pytest.mark.parametrize("saved", [0, 1, 2])
def test_where_optimizers_take_turns_by_epochs_a_state_is_that_of_the_save(
    quick, saved
):
    whole = quick(BY_EPOCHS + "run(range(5))\n", main_optimizer=0)
    load = (
        f"for part, state in zip(parts, torch.load('{saved}.pt')):\n"
        "    part.load_state_dict(state)\n"
    )
    again = quick(BY_EPOCHS + load + f"run(range({saved + 1}, 5))\n", main_optimizer=0)
    joined = len(whole.steps) - len(again.steps)
    assert joined == (2, 2, 4)[saved]
    for component in ("weights", "optimizer", "rates"):
        assert again.column(component) == whole.column(component)[joined:], component
    for component in ("batch", "loss", "gradients"):
        assert again.consumed(component) == whole.consumed(component)[joined:]
