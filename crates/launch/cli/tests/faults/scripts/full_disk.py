"""A checkpoint that does not fit on its disk."""
with open("/dev/full", "w") as checkpoint:
    checkpoint.write("weights" * 10000)
