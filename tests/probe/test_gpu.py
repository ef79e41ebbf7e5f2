"""Tensors on a GPU are hashed there: repeatable, by place and content, no draw made."""

import pytest
import torch

from spotchaos.probe.fingerprint import tensor_digest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a CUDA device, here is none"
    ),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("size", [1, 1001, 3_000_001])
def test_a_digest_on_a_gpu_repeats_and_notices_one_bit(dtype, size):
    tensor = torch.arange(size, device="cuda").to(dtype)
    before = torch.cuda.get_rng_state()
    first = tensor_digest(tensor)
    assert tensor_digest(tensor.clone()) == first
    assert torch.equal(torch.cuda.get_rng_state(), before)
    tensor.view(torch.uint8)[tensor.nbytes // 2] ^= 1  # the last bit of one byte
    assert tensor_digest(tensor) != first


def test_a_digest_on_a_gpu_depends_on_the_order():
    tensor = torch.rand(100_000, device="cuda")
    assert tensor_digest(tensor.flip(0)) != tensor_digest(tensor)
