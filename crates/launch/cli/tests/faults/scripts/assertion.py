"""An assertion with a text."""
batch = 7
assert batch % 8 == 0, f"batch size {batch} is no multiple of 8"
