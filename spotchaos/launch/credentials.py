"""What gives access to accounts, and is hidden from attempts.

An attempt repeats what the program does, several times and with interruptions: it must
not do so to a real bucket, tracker or hub (rules.md 7).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

# Below the home folder.
FILES = (
    ".aws",
    ".azure",
    ".boto",
    ".cache/huggingface/stored_tokens",
    ".cache/huggingface/token",
    ".comet.config",
    ".config/gcloud",
    ".config/gh",
    ".config/rclone",
    ".docker/config.json",
    ".git-credentials",
    ".huggingface/token",
    ".kaggle",
    ".kube",
    ".netrc",
    ".pypirc",
    ".s3cfg",
    ".ssh",
)
# Variables that name such a file.
FILE_VARIABLES = (
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "BOTO_CONFIG",
    "CLOUDSDK_CONFIG",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "HF_TOKEN_PATH",
    "KUBECONFIG",
    "NETRC",
)
_SECRET = re.compile(
    r"AWS_(?!.*REGION).*|AZURE_.*|CLOUDSDK_.*|KUBECONFIG|NETRC|BOTO_CONFIG"
    r"|GOOGLE_APPLICATION_CREDENTIALS|SSH_AUTH_SOCK|SSH_AGENT_PID|GPG_AGENT_INFO"
    r"|DBUS_SESSION_BUS_ADDRESS|DOCKER_HOST|HF_TOKEN_PATH|HUGGINGFACE_TOKEN"
    r"|.*(_|^)(API_?KEY|API_?TOKEN|AUTH_TOKEN|ACCESS_TOKEN|ACCESS_KEY(_ID)?|TOKEN"
    r"|SECRET(_KEY)?|SECRET_ACCESS_KEY|PASSWORD|PASSWD|CREDENTIALS)"
)
# Libraries that would wait for an answer from the network, told that there is none.
OFFLINE = {
    "WANDB_MODE": "offline",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
}


def is_secret(name: str) -> bool:
    """Tell whether an environment variable gives access to an account."""
    return _SECRET.fullmatch(name.upper()) is not None


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what gives access to accounts."""
    return {name: v for name, v in environment.items() if not is_secret(name)}


def secret_paths(environment: Mapping[str, str]) -> list[Path]:
    """Return the files and folders that exist and give access to accounts."""
    home = environment.get("HOME", "")
    paths = [Path(home) / name for name in FILES] if home else []
    named = [environment[v] for v in FILE_VARIABLES if environment.get(v)]
    paths += [Path(name) for name in named]
    return [path for path in paths if path.is_absolute() and _exists(path)]


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except OSError:
        return False
    return True
