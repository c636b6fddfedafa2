"""Prints ``python/rdzv/_flags.py``.

It is made from the output of ``help --json`` of the launcher that is named.
"""

import json
import subprocess
import sys

# Flags that launch() sets, has under another name, or does not need.
OWN = {
    "help", "nnodes", "nproc_per_node", "max_restarts", "module", "no_python", "run_path", "report",
    "print_completion", "explain", "ui", "no_pty", "exit_code", "start_method",
}  # fmt: skip

HEAD = '''\
"""Flags of ``rdzv run`` as keywords of ``rdzv.launch``.

``cargo xtask flags`` writes this file.
"""

# Flags without a value.
SWITCHES = frozenset(
    (
{switches}
    )
)

FLAGS = SWITCHES | {{
{others}
}}

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import timedelta
    from os import PathLike
    from typing import Any, Literal, TypedDict

    _Seconds = float | str | timedelta | None
    _Path = str | PathLike[str] | None
    _Text = float | str | timedelta | PathLike[str] | list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any] | dict[str, Any] | None

    class Flags(TypedDict, total=False):
        """Keywords of ``rdzv.launch``; ``None`` leaves a flag out."""

{fields}
'''


def type_of(flag: dict) -> str:
    if flag["kind"] == "switch":
        return "bool | None"
    if flag["choices"]:
        return f"Literal[{', '.join(json.dumps(choice) for choice in flag['choices'])}] | None"
    if flag["value"] == "SECONDS":
        return "_Seconds"
    return {"integer": "int | str | None", "number": "float | str | None", "path": "_Path", "text": "_Text"}[flag["kind"]]


def field(flag: dict) -> str:
    default = f" Default ``{flag['default']}``." if flag["default"] else ""
    about = f"{flag['help']}.{default}".replace("\\", "\\\\").replace('"', '\\"')
    return f'        {flag["name"]}: {type_of(flag)}\n        """{about}"""'


def render(flags: list[dict]) -> str:
    flags = sorted((flag for flag in flags if flag["name"] not in OWN), key=lambda flag: flag["name"])
    named = lambda indent, wanted: "\n".join(
        f'{indent}"{flag["name"]}",' for flag in flags if (flag["kind"] == "switch") == wanted
    )
    fields = "\n".join(map(field, flags))
    return HEAD.format(switches=named(" " * 8, True), others=named(" " * 4, False), fields=fields)


if __name__ == "__main__":
    sys.stdout.write(render(json.loads(subprocess.check_output([sys.argv[1], "help", "--json"]))))
