"""More files than it may have open."""
import resource

resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
held = [open("/dev/null") for _ in range(100)]
