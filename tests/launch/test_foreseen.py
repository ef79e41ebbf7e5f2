"""What is imported in advance is what the script says, and no file of the program."""

import pytest

from spotchaos.launch.zygote.forkable import Start
from spotchaos.launch.zygote.import_scan import imports_of_script


def start(**what):
    return Start("/usr/bin/python3", (), ("train.py",), **what)


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        pytest.param(
            "import numpy as np\nimport torch\nfrom transformers import Trainer\n",
            ["numpy", "torch", "transformers"],
            id="in order",
        ),
        pytest.param(
            "from __future__ import annotations\nimport os.path\nimport model\n"
            "from data.loader import batches\nfrom . import here\n",
            ["os.path", "torch"],
            id="the program's own",
        ),
        pytest.param(
            "def main():\n    import einops\n", ["torch"], id="only at the top"
        ),
        pytest.param("import torch\nprint(\n", [], id="no Python"),
    ],
)
def test_it_is_what_the_first_statements_import(tmp_path, source, modules):
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "model.py").write_text("")
    (tmp_path / "data").mkdir()
    assert imports_of_script(start(script="train.py"), tmp_path) == modules


def test_of_a_module_only_torch_is_foreseen(tmp_path):
    assert imports_of_script(start(module="pkg.train"), tmp_path) == ["torch"]


def test_of_a_script_that_is_not_there_nothing_is(tmp_path):
    assert imports_of_script(start(script="gone.py"), tmp_path) == []
