"""A traceback whose text is Latin-1, so not UTF-8."""
import os
import sys

sys.stderr.flush()
os.write(2, b"Traceback (most recent call last):\n  File \"train.py\", line 1, in <module>\n")
os.write(2, b"ValueError: the caf\xe9 is closed\n")
sys.exit(1)
