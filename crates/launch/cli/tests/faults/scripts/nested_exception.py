"""An exception with a cause: the last one is what ended the program."""

def read():
    raise KeyError("optimizer")

try:
    read()
except KeyError as error:
    raise RuntimeError("the checkpoint is not usable") from error
