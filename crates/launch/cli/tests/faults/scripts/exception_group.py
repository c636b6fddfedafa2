"""Several exceptions at once (Python 3.11 or newer)."""
raise ExceptionGroup("evaluation failed", [ValueError("accuracy"), TypeError("recall")])
