"""A program that it needs crashes, and it says so."""
import subprocess

subprocess.run(["sh", "-c", "kill -SEGV $$"], check=True)
