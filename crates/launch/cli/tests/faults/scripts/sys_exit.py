"""Ends with a code and no word."""
import sys

sys.exit(3)
