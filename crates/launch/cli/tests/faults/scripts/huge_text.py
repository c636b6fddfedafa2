"""A megabyte of text in one exception."""
raise ValueError("the tensor does not fit: " + "0.0, " * 200_000)
