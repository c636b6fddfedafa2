"""Credentials from the environment that the launcher sets for a job.

With a token or certificates, the variables have paths of files.
"""

import os


def token() -> "bytes | None":
    """Returns the secret of the job; None if it has none."""
    path = os.environ.get("RDZV_JOB_TOKEN_FILE")
    if not path:
        return None
    with open(path, "rb") as file:
        return file.read()


def tls() -> "dict[str, str | os.PathLike[str]] | None":
    """Returns the certificate of the job's processes; None if they have none."""
    variables = {"certificate": "RDZV_TLS_CERT", "key": "RDZV_TLS_KEY", "authorities": "RDZV_TLS_CA"}
    files: "dict[str, str | os.PathLike[str]]" = {name: os.environ.get(one, "") for name, one in variables.items()}
    return files if all(files.values()) else None
