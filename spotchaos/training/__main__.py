"""`python -m spotchaos.training`: the reference trainer, on its own ranks or torchrun's."""

from __future__ import annotations

import sys

from spotchaos.training.command import main

if __name__ == "__main__":
    sys.exit(main())
