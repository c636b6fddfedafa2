"""A file that is not there."""
open("/no/such/tokenizer.json")
