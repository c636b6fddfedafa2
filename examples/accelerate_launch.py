"""`accelerate launch`, with rdzv in the place of torchrun.

    python examples/accelerate_launch.py launch --multi_gpu --num_processes 8 train.py
    python examples/accelerate_launch.py launch --config_file fsdp.yaml train.py

accelerate starts workers by calling `torch.distributed.run` inside of its own process, so a `torchrun`
in the PATH is not asked. Here that call becomes an `rdzv run` with the same flags, which takes over this
process, and with it the environment in which accelerate tells its settings (precision, FSDP, DeepSpeed,
compilation) to the workers. Everything else of accelerate is as ever.
"""

import os

import torch.distributed.run as torchrun
from accelerate.commands.accelerate_cli import main


def flags(arguments, defaults) -> list[str]:
    """What differs from torchrun's defaults, as one would type it."""
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
