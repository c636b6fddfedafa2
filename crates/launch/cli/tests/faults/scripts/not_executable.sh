#!/bin/sh
# The mode of this file does not allow execution.
