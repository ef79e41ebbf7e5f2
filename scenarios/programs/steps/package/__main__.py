"""Ten steps started with python -m package; expected: 10 real steps, the hook fires 10 times."""

import sys

from package.training import main

sys.exit(main())
