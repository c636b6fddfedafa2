"""Several exceptions in one group (Python 3.11 or newer)."""
raise ExceptionGroup("evaluation failed", [ValueError("accuracy"), TypeError("recall")])
