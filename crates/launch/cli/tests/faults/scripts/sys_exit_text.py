"""Ends with a sentence; Python writes it to stderr and exits with 1."""
import sys

sys.exit("no dataset at /data/imagenet")
