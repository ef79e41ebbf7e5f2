"""The state of a step: when it is sampled, and how it is spelled (rules.md 1)."""

import pytest

from tests.probe.loops import ADAM, HEAD, LOOP, steps


def states_by_step(ran):
    return {s["step"]: s["c"] for s in ran.states()}


def test_warm_up_whose_gradients_are_dropped_is_not_the_first_forward(quick):
    warm = """
rng = torch.get_rng_state()
for _ in range(2):
    net(x[:8]).sum().backward()
    {drop}
torch.set_rng_state(rng)
"""
    plain = quick(HEAD + ADAM + steps())
    # Buffers differ, since batch norm counted the warm-up; nothing else does.
    for drop in ("opt.zero_grad()", "net.zero_grad()", "drop()"):
        by_hand = "def drop():\n    for p in net.parameters(): p.grad = None\n"
        ran = quick(HEAD + ADAM + by_hand + warm.format(drop=drop) + steps())
        assert ran.column("weights") == plain.column("weights")
        assert ran.column("rng.torch") == plain.column("rng.torch")
        assert ran.consumed("batch") == plain.consumed("batch")
        assert ran.consumed("loss") == plain.consumed("loss")
        assert len(ran.steps) == 6


def test_buffers_are_those_before_a_forward_that_trains_nothing(quick):
    # As with a pair of networks: the output of one is detached to train the other.
    pair = """
for step in range(3):
    net(torch.randn(8, 8, generator=torch.Generator().manual_seed({seed} + step))).detach()
    loss = net(x[8 * step : 8 * step + 8]).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""
    plain, one, other = (
        quick(HEAD + ADAM + loop).column("buffers")
        for loop in (steps(), pair.format(seed=1), pair.format(seed=9))
    )
    assert plain[0] == one[0] == other[0]
    assert one[1] != other[1]


def test_a_checkpoint_loaded_after_a_trial_forward_is_seen(quick):
    # A forward without backward, as tools that count parameters make, comes first.
    saved = "torch.save([net.state_dict(), opt.state_dict()], 'a.pt')\n"
    load = """
net(x[:8]).sum()
a, b = torch.load("a.pt")
net.load_state_dict(a); opt.load_state_dict(b)
"""
    first = quick(HEAD + ADAM + steps(0, 3) + saved + steps(3, 6))
    again = quick(HEAD + ADAM + load + steps(3, 6))
    for component in ("weights", "optimizer", "rates"):
        assert again.column(component)[0] == first.column(component)[3], component


def test_a_checkpoint_loaded_after_a_rate_was_searched_on_a_copy_is_seen(quick):
    saved = "torch.save([net.state_dict(), opt.state_dict()], 'a.pt')\n"
    search = """
import copy
trial = copy.deepcopy(net)
searcher = torch.optim.SGD(trial.parameters(), lr=0.1)
for _ in range(3):
    trial(x[:8]).sum().backward(); searcher.step(); searcher.zero_grad()
del trial, searcher
"""
    load = """
a, b = torch.load("a.pt")
net.load_state_dict(a); opt.load_state_dict(b)
"""
    first = quick(HEAD + ADAM + search + steps(0, 3) + saved + steps(3, 6))
    again = quick(HEAD + ADAM + search + load + steps(3, 6))
    for component in ("weights", "optimizer", "rates"):
        assert again.column(component)[0] == first.column(component)[3], component
    assert again.consumed("batch")[1] == first.consumed("batch")[4]


def test_a_sample_read_from_a_file_between_two_optimizers_begins_nothing_again(quick):
    # As of a data set that keeps each sample in a file of its own.
    alternating = """
critic = nn.Linear(2, 1)
opt_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
for step in range(3):
    for _ in range(2):
        {read}
        critic(net(x[:8]).detach()).mean().backward(); opt_critic.step()
    loss = critic(net(x[8:16])).mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""
    put = "torch.save(x, 'x.pt')\n"
    plain = quick(HEAD + ADAM + put + alternating.format(read="pass"))
    read = quick(HEAD + ADAM + put + alternating.format(read="torch.load('x.pt')"))
    assert read.consumed("batch") == plain.consumed("batch")
    assert read.column("weights") == plain.column("weights")


SPECIFIED = """
import torch
torch.manual_seed(0)
class Spec: pass
class Layer(torch.nn.Linear):
    def forward(self, given):
        return Spec() if isinstance(given, Spec) else super().forward(given)
net = Layer(2, 2)
"""


def test_a_layer_called_with_a_description_of_its_input_trains_nothing(quick):
    ran = quick(
        SPECIFIED
        + """
net(Spec())
torch.nn.init.constant_(net.weight, 0.5)
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(2):
    opt.zero_grad(); net(torch.ones(1, 2)).sum().backward(); opt.step()
"""
    )
    plain = quick(
        SPECIFIED
        + """
torch.nn.init.constant_(net.weight, 0.5)
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(2):
    opt.zero_grad(); net(torch.ones(1, 2)).sum().backward(); opt.step()
"""
    )
    assert ran.column("weights") == plain.column("weights")
    assert [m["micro"] for m in ran.steps] == [1, 1]


def test_a_call_that_hides_its_tensors_is_a_forward_where_no_other_is(quick):
    ran = quick(
        """
import torch
class Box:
    def __init__(self, tensor): self.__tensor = [tensor]
    def open(self): return self.__tensor[0]
    __slots__ = ("__tensor",)
class Net(torch.nn.Linear):
    def forward(self, box): return Box(super().forward(box.open()))
net = Net(2, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)
for step in range(2):
    opt.zero_grad(); net(Box(torch.ones(1, 2))).open().sum().backward(); opt.step()
"""
    )
    assert len(set(ran.column("weights"))) == 2
    assert [m["micro"] for m in ran.steps] == [1, 1]


def test_forwards_without_gradients_are_evaluation(quick):
    ran = quick(
        HEAD
        + ADAM
        + """
net.eval()
for _ in range(3): net(x[:8])
net.train()
for epoch in range(2):
    for step in range(3):
        net(x[:8]).sum().backward()
        opt.step(); opt.zero_grad()
    with torch.no_grad():
        for _ in range(4): net(x[:8])
"""
    )
    assert ran.bye["counts"]["forward"] == 6
    assert [s["step"] for s in ran.of("site", site="evaluation")] == [3, 6]


def test_micro_batches_make_one_step(quick):
    ran = quick(
        HEAD
        + ADAM
        + """
for step in range(4):
    for micro in range(3):
        net(x[8 * micro : 8 * micro + 8]).mean().backward()
    opt.step(); opt.zero_grad()
"""
    )
    assert [s["micro"] for s in ran.steps] == [3] * 4
    assert [len(s["samples"]) for s in ran.steps] == [24] * 4
    assert [s["step"] for s in ran.states()] == [0, 1, 2, 3]


def test_a_step_skipped_by_the_program_leaves_the_state_before_the_next(quick):
    script = """
for step in range(6):
    loss = net(x[8 * step : 8 * step + 8]).square().mean()
    opt.zero_grad()
    loss.backward()
    if step != 3:
        opt.step()
"""
    ran = quick(HEAD + ADAM + script)
    assert [s["step"] for s in ran.steps] == [1, 2, 3, 4, 5]
    assert sorted(states_by_step(ran)) == [0, 1, 2, 3, 4]
    # Batch 3 was received and not trained on: its forward's gradients were dropped.
    rows = {tuple(s["samples"]) for s in ran.steps}
    assert len(rows) == 5
    # Its forward moved the streams and the buffers, which the next state shows.
    assert len(set(ran.column("rng.torch"))) == 5


def test_names_are_the_models_whatever_wraps_it(quick):
    plain = quick(HEAD + ADAM + steps())
    compiled = quick(
        HEAD + "net = torch.compile(net, backend='eager')\n" + ADAM + steps(),
    )
    held_by_loss = quick(
        HEAD
        + """
class Loss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
    def forward(self, x):
        return self.model(x)
net = Loss(net)
"""
        + ADAM
        + steps()
    )
    second_holder = quick(
        HEAD + "other = nn.ModuleList([net, nn.ReLU()])\n" + ADAM + steps()
    )
    for ran in (compiled, held_by_loss):
        assert ran.column("weights") == plain.column("weights")
        assert ran.column("optimizer") == plain.column("optimizer")
        assert ran.column("buffers") == plain.column("buffers")
    assert len(second_holder.states()) == len(plain.states())


def test_the_order_of_parameters_does_not_matter(quick):
    reverse = "opt = torch.optim.AdamW(list(net.parameters())[::-1], 1e-2)\n"
    plain, reversed_ = quick(HEAD + ADAM + steps()), quick(HEAD + reverse + steps())
    assert reversed_.column("weights") == plain.column("weights")
    assert reversed_.column("optimizer") == plain.column("optimizer")
    assert reversed_.consumed("gradients") == plain.consumed("gradients")


def test_equal_states_are_spelled_alike(quick):
    rebuild = """
state = opt.state_dict()
for entry in state["state"].values():
    entry["step"] = int(entry["step"])
    entry["max_exp_avg_sq"] = None
fresh = dict(reversed(list(state["state"].items())))
opt.load_state_dict({"param_groups": state["param_groups"], "state": fresh})
for entry in opt.state.values():
    entry["step"] = torch.tensor(float(entry["step"]))
"""
    plain = quick(HEAD + ADAM + steps(0, 3) + steps(3, 6))
    rebuilt = quick(HEAD + ADAM + steps(0, 3) + rebuild + steps(3, 6))
    assert rebuilt.column("optimizer") == plain.column("optimizer")


def test_another_precision_is_another_fingerprint_and_is_named(quick):
    halve = """
for entry in opt.state.values():
    entry["exp_avg"] = entry["exp_avg"].to(torch.bfloat16).float()
"""
    cast = """
for entry in opt.state.values():
    entry["exp_avg"] = entry["exp_avg"].to(torch.bfloat16)
net(x[:8]).sum().backward()
"""
    plain = quick(HEAD + ADAM + steps(0, 3) + steps(3, 4))
    lossy = quick(HEAD + ADAM + steps(0, 3) + halve + steps(3, 4))
    typed = quick(HEAD + ADAM + steps(0, 3) + cast)
    assert lossy.column("optimizer")[3] != plain.column("optimizer")[3]
    assert typed.states()[-1]["dtypes"]["optimizer"] == "bfloat16,float32"


def test_a_scheduler_is_what_decides_its_next_rates(quick):
    schedule = "sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: 0.9**n)\n"
    loop = LOOP.rstrip() + "\n    sched.step()\n"
    first = quick(HEAD + ADAM + schedule + loop.format(start=0, stop=6))
    # Rebuilt at the right place: another `_step_count`, the same rates.
    late = """
opt.param_groups[0]["initial_lr"] = 1e-2
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: 0.9**n, last_epoch=2)
"""
    again = quick(HEAD + ADAM + late + loop.format(start=3, stop=6))
    for component in ("rates", "scheduler"):
        assert again.column(component)[:3] == first.column(component)[3:6]
        assert len(set(first.column(component)[:6])) == 6


@pytest.mark.parametrize(
    "kind", ["ReduceLROnPlateau", "SequentialLR", "ChainedScheduler"]
)
def test_schedulers_with_constructors_of_their_own_are_seen(quick, kind):
    make = {
        "ReduceLROnPlateau": "S.ReduceLROnPlateau(opt, patience=1)",
        "SequentialLR": "S.SequentialLR(opt, [S.ConstantLR(opt), S.ExponentialLR(opt, 0.9)], [2])",
        "ChainedScheduler": "S.ChainedScheduler([S.ConstantLR(opt), S.ExponentialLR(opt, 0.9)])",
    }[kind]
    metric = "1.0" if kind == "ReduceLROnPlateau" else ""
    script = f"import torch.optim.lr_scheduler as S\nsched = {make}\n"
    loop = LOOP.format(start=0, stop=5).rstrip() + f"\n    sched.step({metric})\n"
    ran = quick(HEAD + ADAM + script + loop)
    assert len(set(ran.column("scheduler"))) >= 5


def test_a_discarded_model_does_not_change_the_names(quick):
    plain = quick(HEAD + ADAM + steps())
    leftover = "old = [nn.Sequential(net)]\nold = None\n"
    assert quick(HEAD + leftover + ADAM + steps()).column("weights") == plain.column(
        "weights"
    )


def test_saved_and_finished_states_are_those_of_their_moment(quick):
    ran = quick(HEAD + ADAM + steps(0, 3) + "torch.save(1, 'a.pt')\n" + steps(3, 6))
    (saved,) = ran.states("save")
    assert (saved["step"], saved["n"]) == (3, 1)
    assert saved["c"] == states_by_step(ran)[3]
    (finish,) = ran.states("finish")
    assert finish["step"] == 6
    assert finish["c"]["weights"] not in ran.column("weights")


def test_fewer_fingerprints_are_made_on_order(quick):
    script = HEAD + ADAM + steps(0, 5) + "torch.save(1, 'a.pt')\n" + steps(5, 12)
    full = quick(script)
    some = quick(script, fingerprint="saves", every=4)
    few = quick(script, fingerprint="light")
    assert [s["step"] for s in some.states()] == [0, 4, 8]
    assert [s["step"] for s in few.states()] == [0]
    assert few.states("save")[0]["c"] == full.states("save")[0]["c"]
    assert few.states("finish")[0]["c"] == full.states("finish")[0]["c"]
    assert states_by_step(some)[8] == states_by_step(full)[8]
    assert some.consumed("loss") == full.consumed("loss")
    assert some.consumed("batch") == full.consumed("batch")
    assert set(some.consumed("gradients")) == {None}
    assert [s["c"] for s in few.steps] == [{}] * 12


def test_the_last_state_is_whole_although_only_the_first_was_sampled(quick):
    # A rank that saves nothing, whose model and optimizer are gone at the exit.
    body = (HEAD + ADAM + steps(0, 5)).replace("\n", "\n    ")
    script = f"def main():\n    {body}\n    return\nmain()\n"
    full, few = quick(script), quick(script, fingerprint="light")
    assert few.states("finish")[0]["c"] == full.states("finish")[0]["c"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("fold(0)\nfold(1)\n", id="one after the other"),
        pytest.param("fold(0)\nfold(1)\nfold(2)\n", id="three"),
        pytest.param(
            "def both():\n    first = fold(0)\n    second = fold(1)\nboth()\n",
            id="the first lives on",
        ),
        pytest.param(
            "def more():\n    net, _ = fold(0)\n    fold(1, net)\nmore()\n",
            id="another optimizer",
        ),
    ],
)
def test_the_last_state_is_of_the_model_that_was_trained_last(quick, body):
    script = (
        """
import random, torch
random.seed(0)
def fold(number, net=None):
    torch.manual_seed(number)
    net = net or torch.nn.Linear(4, 1)
    opt = torch.optim.Adam(net.parameters(), 0.1)
    for step in range(4):
        net(torch.ones(2, 4) * step).sum().backward()
        opt.step(); opt.zero_grad()
    return net, opt
"""
        + body
    )
    full, few = quick(script), quick(script, fingerprint="light")
    assert few.states("finish")[0]["c"] == full.states("finish")[0]["c"]


def test_a_background_hash_equals_one_made_at_once(quick):
    # Large enough for a thread: 8 MB of weights.
    script = """
    import torch
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024))
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(3):
        net(torch.ones(2, 1024)).sum().backward()
        opt.step(); opt.zero_grad()
        {save}
    """
    alone = quick(script.format(save=""))
    saving = quick(script.format(save="torch.save(1, 'a.pt')"))
    assert (
        alone.column("weights")[1:]
        == [s["c"]["weights"] for s in saving.states("save")][:2]
    )


def test_what_a_step_calls_and_no_optimizer_trains_is_told_with_it(quick):
    # A teacher whose optimizer lives on but steps no more, and a copy that is renewed.
    program = """
teacher, target = nn.Linear(8, 2), copy.deepcopy(net)
teaching = torch.optim.SGD(teacher.parameters(), 0.1)
teacher(x).sum().backward(); teaching.step(); teaching.zero_grad(set_to_none=True)
for step in range(5):
    if step == 4:
        target.load_state_dict(net.state_dict())
    with torch.no_grad():
        wanted = teacher(x[:8]) + target.eval()(x[:8])
    loss = (net(x[:8]) - wanted).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""
    ran = quick(HEAD + ADAM + program)
    # Whoever stepped in the window before may step again: GANs' optimizers take turns.
    assert len(ran.steps[1]["frozen"]) == 1
    used = [dict(mark["frozen"]) for mark in ran.steps[2:]]
    assert [len(each) for each in used] == [2, 2, 2]
    teachers = [kind for kind in used[0] if used[0][kind] == used[2][kind]]
    assert len(teachers) == 1
    assert used[0] == used[1]


def test_what_is_written_past_autograd_is_seen(quick):
    # No version counter moves for it, so that none can say what need not be hashed again.
    write = """
    if step == 2:
        before = net[0].weight._version
        {write}
        assert net[0].weight._version == before
"""
    plain = quick(HEAD + ADAM + steps()).column("weights")
    for how in ("net[0].weight.data.add_(1)", "net[0].weight.detach().numpy()[0] = 5"):
        loop = steps(0, 4).rstrip("\n") + write.format(write=how)
        weights = quick(HEAD + ADAM + loop).column("weights")
        assert weights[:3] == plain[:3]
        assert weights[3] != plain[3]


def test_an_untrained_module_without_content_is_left_out(quick):
    empty = "ghost = nn.Linear(8, 2, device='meta')\nghost(torch.empty(4, 8, device='meta'))\n"
    ran = quick(HEAD + ADAM + empty + steps(0, 2))
    assert not ran.troubles
    assert ran.column("weights") == quick(HEAD + ADAM + steps(0, 2)).column("weights")


# A group of which this process is the only one there: nothing is sent.
REPLICA = """
import copy, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank={rank}, world_size=2)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
ddp = DDP(net, broadcast_buffers={broadcasts})
def reduce(_state, bucket):
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
ddp.register_comm_hook(None, reduce)
opt = torch.optim.SGD(ddp.parameters(), 0.1)
ema = copy.deepcopy(net).requires_grad_(False)
ema[1].running_mean += {apart}
for step in range(3):
    ddp(torch.randn(8, 8)).sum().backward()
    opt.step(); opt.zero_grad()
    for e, n in zip(ema.state_dict().values(), net.state_dict().values()):
        e.copy_(e * 0.5 + n * 0.5)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("rank", "broadcasts", "are_state"),
    [(0, True, True), (1, True, False), (1, False, True)],
)
def test_buffers_that_rank_0_sends_at_each_forward_are_its_alone(
    quick, rank, broadcasts, are_state
):
    one, other = (
        quick(REPLICA.format(rank=rank, broadcasts=broadcasts, apart=apart))
        for apart in (0, 1)
    )
    assert len(one.steps) == 3
    first = list(states_by_step(one).values())[:3]
    assert [("buffers" in c) for c in first] == [are_state] * 3
    assert all({"weights", "averages"} <= c.keys() for c in first)
    # So is what averages them.
    apart = [c["averages"] for c in list(states_by_step(other).values())[:3]]
    assert ([c["averages"] for c in first] != apart) == are_state
