#!/bin/sh
# A program that the image does not have; the shell reports it and exits with 127.
exec train-that-nobody-installed --epochs 3
