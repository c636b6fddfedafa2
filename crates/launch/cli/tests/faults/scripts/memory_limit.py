"""More memory than its limit allows: Python says MemoryError."""
import resource

resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
batch = bytearray(2 << 30)
