"""An exception ends a thread; the main thread notices and ends the program."""
import sys
import threading

def load():
    raise RuntimeError("shard 12 cannot be decoded")

loader = threading.Thread(target=load, name="loader")
loader.start()
loader.join()
print("the loader has ended, so there is nothing to do", file=sys.stderr)
sys.exit(1)
