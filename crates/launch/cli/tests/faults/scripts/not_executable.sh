#!/bin/sh
# Its mode does not allow to execute it.
