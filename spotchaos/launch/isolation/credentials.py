"""What gives access to accounts, and is hidden from attempts.

An attempt repeats what the program does, several times and with interruptions: it must
not do so to a real bucket, tracker or hub (rules.md 7).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

# Below the home folder.
FILES = (
    ".aws",
    ".azure",
    ".boto",
    ".cache/huggingface/stored_tokens",
    ".cache/huggingface/token",
    ".comet.config",
    ".config/configstore",
    ".config/gcloud",
    ".config/gh",
    ".config/neptune",
    ".config/rclone",
    ".databrickscfg",
    ".docker",
    ".git-credentials",
    ".huggingface/token",
    ".kaggle",
    ".kube",
    ".mlflow/credentials",
    ".netrc",
    ".pgpass",
    ".pypirc",
    ".s3cfg",
    ".ssh",
    ".vault-token",
    "_netrc",
    "clearml.conf",
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
# By the name alone.
_SECRET = re.compile(
    r"AWS_(ACCESS_|SECRET|SESSION_TOKEN|SECURITY_TOKEN|BEARER_TOKEN|ROLE_|WEB_IDENTITY"
    r"|CONTAINER_|CONFIG_FILE|SHARED_|ENDPOINT_URL|SSO_|LOGIN_).*|AWS_(DEFAULT_)?PROFILE"
    r"|AZURE_(?!.*(REGION|LOCATION)).*|CLOUDSDK_(CONFIG|AUTH_.*|CORE_ACCOUNT)"
    r"|KUBECONFIG|NETRC|BOTO_CONFIG|PGPASSFILE|KRB5CCNAME|KAGGLE_(KEY|USERNAME)"
    r"|GOOGLE_APPLICATION_CREDENTIALS|SSH_AUTH_SOCK|SSH_AGENT_PID|GPG_AGENT_INFO"
    r"|DBUS_SESSION_BUS_ADDRESS|DOCKER_(HOST|AUTH_CONFIG|CONFIG)|HF_TOKEN_PATH|SLURM_JWT"
    r"|(HF|HUGGING_?FACE(_HUB)?|GITHUB|GH|GITLAB|CI_JOB|CI_REGISTRY|VAULT|NPM|WANDB)_TOKEN"
    r"|.*(_|^)(API_?KEY|API_?TOKEN|AUTH_?TOKEN|ACCESS_?TOKEN|ACCESS_KEY(_ID)?"
    r"|REFRESH_TOKEN|SECRET(_KEY)?|SECRET_ACCESS_KEY|PRIVATE_KEY|PASSWORD|PASSWD"
    r"|CREDENTIALS?)"
)
# Of a text model or a tokenizer: never an account's.
_OF_TEXT = re.compile(
    r".*(_|^)(PAD|EOS|BOS|UNK|SEP|CLS|MASK|BEGIN|START|END|STOP|SPECIAL|EXTRA|IMAGE|AUDIO"
    r"|VIDEO|NEWLINE|SPACE|BLANK|PER|MAX|MIN|NUM|LAST|FIRST|NEXT)_TOKEN"
)
# By the name, if the value looks so, too.
_MAYBE = re.compile(r".*(_|^)(TOKEN|KEY|PASS|PWD|AUTH|SIGNATURE|WEBHOOK(_URL)?|DSN)")
# By the value, whatever the name: tokens of well-known services, keys, passwords in URLs.
_SECRET_VALUE = re.compile(
    r"(hf_|gh[pousr]_|github_pat_|glpat-|npm_|pypi-|dckr_pat_|dop_v1_)[\w-]{16,}.*"
    r"|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}|A[KS]IA[A-Z0-9]{16}|AIza[\w-]{35}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\..*|-----BEGIN [A-Z ]*PRIVATE KEY-----.*"
    r"|[a-z][a-z0-9+.-]*://[^\s/:@]*:[^\s/@]+@.*",
    re.DOTALL,
)
_LEAST_OF_A_KEY = 16
# A word, a mark of a tokenizer, a number, a path, a switch.
_HARMLESS_VALUE = re.compile(
    r"|[A-Za-z]{1,15}|[-+.\d]+|[<\[({|].*[>\])}|]|[\W_]+|.{1,3}|[./~].*"
)
# Libraries that would wait for an answer from the network, told that there is none.
OFFLINE = {
    "WANDB_MODE": "offline",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
}


def is_secret(name: str, value: str | None = None) -> bool:
    """Tell whether an environment variable gives access to an account.

    Args:
        name: decides, where it is clear.
        value: decides, where the name is not; None: it is taken for a secret then.
    """
    upper = name.upper()
    if _SECRET.fullmatch(upper):
        return True
    if upper.endswith("_PROXY"):  # the way to a network that somebody has allowed
        return False
    if value is not None and _SECRET_VALUE.fullmatch(value):
        return True
    if not _MAYBE.fullmatch(upper) or _OF_TEXT.fullmatch(upper):
        return False
    if value is None:
        return upper.endswith("TOKEN")
    if _HARMLESS_VALUE.fullmatch(value):
        return False
    return upper.endswith("TOKEN") or len(value) >= _LEAST_OF_A_KEY


def without_secrets(
    environment: Mapping[str, str], *, keep: Sequence[str] = ()
) -> dict[str, str]:
    """Return the environment without what gives access to accounts.

    Args:
        environment: of the user.
        keep: names that stay all the same, or `NAME*` for all that begin so.
    """
    removed = removed_names(environment, keep=keep)
    return {name: v for name, v in environment.items() if name not in removed}


def removed_names(
    environment: Mapping[str, str], *, keep: Sequence[str] = ()
) -> list[str]:
    """Return the variables that attempts do not have, by name."""
    return sorted(
        name
        for name, value in environment.items()
        if is_secret(name, value) and not is_kept(name, keep)
    )


def is_kept(name: str, keep: Sequence[str]) -> bool:
    """Tell whether the user has asked for a variable to stay."""
    return any(name.startswith(k[:-1]) if k.endswith("*") else name == k for k in keep)


def wanted_in(said: str, removed: Sequence[str]) -> str | None:
    """Return which removed variable a program complains about.

    Args:
        said: its last lines, and its exception.
        removed: names of the variables that it does not have.
    """
    for name in removed:
        if re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", said):
            return name
    return None


def secret_paths(
    environment: Mapping[str, str], *, keep: Sequence[str] = ()
) -> list[Path]:
    """Return the files and folders that exist and give access to accounts."""
    home = environment.get("HOME", "")
    paths = [Path(home) / name for name in FILES] if home else []
    named = [
        environment[v]
        for v in FILE_VARIABLES
        if environment.get(v) and not is_kept(v, keep)
    ]
    paths += [Path(name) for name in named]
    return [path for path in paths if path.is_absolute() and _exists(path)]


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except OSError:
        return False
    return True
