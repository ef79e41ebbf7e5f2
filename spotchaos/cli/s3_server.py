"""`spotchaos s3`: an S3 that fails as told, for any client."""

from __future__ import annotations

import click

from spotchaos.cli.serve import interruptible, say
from spotchaos.injectors.objectstore import S3Store
from spotchaos.injectors.storage_faults import STORAGE_FAULTS, StorageFault

_NAMES = [name for name in STORAGE_FAULTS if name.startswith("s3-")]
EPILOG = f"""\b
  spotchaos s3 --fault s3-503:2 --fault s3-truncated-get
  AWS_ENDPOINT_URL=http://127.0.0.1:PORT aws s3 mb s3://bucket

Faults: {", ".join(_NAMES)}. Orders: POST /_spotchaos/fault?name=...&count=..., /reset;
GET /_spotchaos/log. Objects are kept in memory. Runs until interrupted."""


@click.command(epilog=EPILOG)
@click.option("--port", type=int, default=0, metavar="N", help="default: a free one")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="NAME[:N]",
    help="strike the Nth operation that it can strike (default: 1); N+ from then on",
)
def command(*, port: int, faults: tuple[str, ...]) -> None:
    """Serve an S3 on 127.0.0.1 that fails as told."""
    armed = [StorageFault.parse(text) for text in faults]
    with (
        interruptible() as interrupted,
        S3Store(port=port, faults=armed, on_entry=say) as store,
    ):
        say(store.base_url)
        interrupted.wait()
