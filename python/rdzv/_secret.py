"""Secrets of the job.

The launcher passes the paths of the token and the certificates to the workers in environment variables.
"""

import os


def token() -> "bytes | None":
    """Token of the job, or None."""
    path = os.environ.get("RDZV_JOB_TOKEN_FILE")
    if not path:
        return None
    with open(path, "rb") as file:
        return file.read()


def tls() -> "dict[str, str | os.PathLike[str]] | None":
    """Paths of the job's certificate, key and authorities, or None."""
    variables = {"certificate": "RDZV_TLS_CERT", "key": "RDZV_TLS_KEY", "authorities": "RDZV_TLS_CA"}
    files: "dict[str, str | os.PathLike[str]]" = {name: os.environ.get(one, "") for name, one in variables.items()}
    return files if all(files.values()) else None
