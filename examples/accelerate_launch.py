"""Runs `accelerate launch` with rdzv in place of torchrun.

    python examples/accelerate_launch.py launch --multi_gpu --num_processes 8 train.py
    python examples/accelerate_launch.py launch --config_file fsdp.yaml train.py

accelerate starts workers by calling `torch.distributed.run` in its own process, so it does not use
a `torchrun` from PATH. This script replaces that call with `rdzv run` and the same flags.
`rdzv run` replaces this process and inherits its environment variables, in which accelerate passes
its settings (precision, FSDP, DeepSpeed, compilation) to the workers. Nothing else in accelerate
changes.
"""

import os

import torch.distributed.run as torchrun
from accelerate.commands.accelerate_cli import main


def flags(arguments, defaults) -> list[str]:
    """Returns the flags that differ from torchrun's defaults."""
    words = []
    for name, value in vars(arguments).items():
        if name.startswith("training_script") or value in (None, getattr(defaults, name)):
            continue
        flag = "--" + name.replace("_", "-")
        words.append(flag if value is True else f"{flag}={value}")
    return words


def run(arguments) -> None:
    script = [arguments.training_script, *arguments.training_script_args]
    defaults = torchrun.get_args_parser().parse_args(script)
    os.execvp("rdzv", ["rdzv", "run", *flags(arguments, defaults), *script])


if __name__ == "__main__":
    torchrun.run = run
    main()
