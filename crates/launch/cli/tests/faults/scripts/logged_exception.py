"""The program catches its exception, logs it, and exits with 1."""
import logging
import sys

logging.basicConfig()
try:
    open("/no/such/config.yaml")
except OSError:
    logging.exception("training failed")
    sys.exit(1)
