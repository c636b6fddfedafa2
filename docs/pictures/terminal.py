# /// script
# requires-python = ">=3.11"
# dependencies = ["pyte==0.8.2"]
# ///
"""Draws what a terminal shows during a run and after a failure: `uv run docs/pictures/terminal.py RDZV`.

RDZV is the path of the launcher. The script writes `running.svg` and `failure.svg` beside itself.
"""

import fcntl
import html
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pyte

COLUMNS, ROWS = 100, 24

COLOURS = {
    "default": "#d0d4da", "black": "#5c6370", "red": "#e06c75", "green": "#98c379", "brown": "#e5c07b",
    "blue": "#61afef", "magenta": "#c678dd", "cyan": "#56b6c2", "white": "#ffffff",
}  # fmt: skip

TRAIN = '''
import os, sys, time

rank, fails = int(os.environ["RANK"]), sys.argv[1:] == ["lr"]
print("loaded 50000 samples", flush=True)
for step in range(101):
    if fails and step == 37 and rank == 2:
        raise KeyError("lr")
    bar = "#" * (step // 5)
    sys.stderr.write(f"\\\\repoch 1 {step:3}%|{bar:20}| loss {2.3 / (1 + step / 9):.2f}")
    sys.stderr.flush()
    time.sleep(0.02 if fails else 0.04 + rank % 2 / 200)
'''.replace("\\\\", "\\")


def screen_of(launcher, arguments, seconds, folder):
    """Returns the screen of a run after some seconds, or at its end."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    terminal, line = pty.openpty()
    os.set_blocking(terminal, False)
    fcntl.ioctl(line, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    command = [launcher, "run", "--standalone", "--nproc-per-node", "4", *arguments]
    environment = os.environ | {"TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"}
    run = subprocess.Popen(
        command, stdin=line, stdout=line, stderr=line, cwd=folder, env=environment, start_new_session=True
    )
    os.close(line)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                shown = os.read(terminal, 65536)
                stream.feed(shown.replace(folder.encode(), b"/home/me/job"))
            except OSError:
                break
    run.terminate()
    run.wait()
    os.close(terminal)
    return screen


def svg(command, screen):
    """Returns a picture of a command and of the screen below it."""
    rows = [screen.buffer[row] for row in range(ROWS)]
    texts = ["".join(row[column].data for column in range(COLUMNS)).rstrip() for row in rows]
    last = max((row for row, text in enumerate(texts) if text), default=0)
    height = 18 * (last + 2) + 24
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * 8 + 24} {height}" '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13">',
        '<rect width="100%" height="100%" rx="6" fill="#21252b"/>',
        f'<text x="12" y="24" fill="#98c379" xml:space="preserve">$ {html.escape(command)}</text>',
    ]
    for number, row in enumerate(rows[: last + 1]):
        column = 0
        while column < len(texts[number]):
            cell, begin = row[column], column
            while column < len(texts[number]) and row[column].fg == cell.fg and row[column].bold == cell.bold:
                column += 1
            text = html.escape(texts[number][begin:column])
            colour = COLOURS.get(cell.fg, f"#{cell.fg}" if len(cell.fg) == 6 else COLOURS["default"])
            weight = ' font-weight="bold"' if cell.bold else ""
            lines.append(
                f'<text x="{12 + 8 * begin}" y="{24 + 18 * (number + 1)}" textLength="{8 * (column - begin)}" '
                f'fill="{colour}"{weight} xml:space="preserve">{text}</text>'
            )
    return "\n".join([*lines, "</svg>\n"])


def main():
    launcher = os.path.abspath(sys.argv[1])
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(TRAIN)
        shown = "rdzv run --standalone --nproc-per-node 4 train.py"
        for name, arguments, seconds in [("running", [], 2.5), ("failure", ["lr"], 20)]:
            screen = screen_of(launcher, ["train.py", *arguments], seconds, folder)
            (here / f"{name}.svg").write_text(svg(" ".join([shown, *arguments]), screen))


if __name__ == "__main__":
    main()
