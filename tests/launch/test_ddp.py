"""Two gloo ranks find each other in a network that has only loopback."""

import os
import sys

import pytest

from spotchaos.launch.attempt.attempt import Exited
from tests.launch.conftest import BOUND_S

SOURCE = r"""
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
# One write: two ranks share the terminal, and pieces of their lines would mix.
os.write(1, f"sum {value.item()}\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.ddp
@pytest.mark.parametrize("mechanisms", ["best", "user"], indirect=True)
def test_two_gloo_ranks_reduce_inside(start):
    attempt = start("", command=(sys.executable, "-c", SOURCE), ranks=2)
    assert attempt.wait(BOUND_S) == Exited(0), attempt.output_tail
    assert attempt.output_tail.count("sum 3.0") == 2


@pytest.mark.ddp
def test_gloo_binds_to_an_address_that_is_not_loopback(start):
    if os.geteuid() != 0:
        pytest.skip("only root may change the host name inside")
    name = "a-host-of-its-own"
    source = (
        f"echo 203.0.113.9 {name} > /etc/hosts; hostname {name}; "
        f'exec {sys.executable} -c "$SOURCE"'
    )
    attempt = start(
        "",
        command=("sh", "-c", source),
        environment={"SOURCE": SOURCE},
        addresses=["203.0.113.9"],
        ranks=2,
    )
    assert attempt.wait(BOUND_S) == Exited(0), attempt.output_tail
    assert attempt.output_tail.count("sum 3.0") == 2
