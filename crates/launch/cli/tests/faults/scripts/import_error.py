"""A package that is not installed."""
import flash_attention_that_nobody_has
