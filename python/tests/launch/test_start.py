"""Ways to send a function: by name, through the main file, as code."""

import subprocess
import sys

import rdzv
from rdzv.testing import run_workers

MAIN_FILE = '''
import rdzv

class Thing:
    def __init__(self, number):
        self.number = number

def add_rank(thing):
    return Thing(thing.number + rdzv.worker.rank())

if __name__ == "__main__":
    print([thing.number for thing in rdzv.launch(add_rank, (Thing(5),), nprocs=2).values()])
'''


def run(*arguments, text=None):
    return subprocess.run([sys.executable, *arguments], input=text, capture_output=True, text=True, timeout=60)


def test_a_function_of_the_main_file_runs_it_under_another_name(tmp_path):
    (tmp_path / "program.py").write_text(MAIN_FILE)
    ended = run(tmp_path / "program.py")
    assert ended.stdout == "[5, 6]\n", ended.stderr


def test_a_main_module_is_found_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "__main__.py").write_text(MAIN_FILE)
    monkeypatch.chdir(tmp_path)
    ended = run("-m", "package")
    assert ended.stdout == "[5, 6]\n", ended.stderr


def test_a_main_file_that_launches_when_imported_is_refused(tmp_path):
    (tmp_path / "program.py").write_text("import rdzv\ndef f():\n    return 1\nrdzv.launch(f, nprocs=1)\n")
    ended = run(tmp_path / "program.py")
    assert ended.returncode == 1 and 'if __name__ == "__main__"' in ended.stderr


NOTEBOOK = """
import rdzv
number = 4
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
def work(by):
    return fibonacci(number) * by + rdzv.worker.rank()
"""


def test_a_program_that_is_no_file_needs_pickle():
    ended = run("-", text=NOTEBOOK + "rdzv.launch(work, (10,), nprocs=1)\n")
    assert "ValueError" in ended.stderr and "start='pickle'" in ended.stderr
    ended = run("-", text=NOTEBOOK + "print(dict(rdzv.launch(work, (10,), nprocs=2, start='pickle')))\n")
    assert ended.stdout == "{0: 30, 1: 31}\n", ended.stderr


def test_a_class_of_a_notebook_needs_cloudpickle():
    text = "import rdzv\nclass Thing: pass\ndef f(thing): return 1\nrdzv.launch(f, (Thing(),), nprocs=1, start='pickle')"
    ended = run("-c", text)
    try:
        import cloudpickle  # noqa: F401
    except ImportError:
        assert "needs cloudpickle" in ended.stderr
    else:
        assert ended.returncode == 0, ended.stderr


def test_local_functions_travel_with_what_they_enclose():
    base, text = 5, "x"

    def factorial(n):
        return 1 if n == 0 else n * factorial(n - 1)

    def work(n, *, more=2):
        return text * more, base + factorial(n) + rdzv.worker.rank()

    assert run_workers(work, 2, (4,)) == [("xx", 29), ("xx", 30)]


def test_worker_has_path_and_arguments_of_the_caller(monkeypatch, tmp_path):
    (tmp_path / "found_only_here.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["program", "--flag"])

    def work():
        import found_only_here

        return found_only_here.VALUE, sys.argv

    assert run_workers(work, 1) == [(7, ["program", "--flag"])]


def test_workers_load_next_to_nothing():
    bare = run("-c", "import sys; print(*sys.modules)").stdout.split()
    loaded = set(rdzv.launch("launch.loaded:names", nprocs=1)[0].split()) - set(bare)
    assert loaded <= {"launch", "launch.loaded", "marshal", "rdzv._entry", "__mp_main__", "zipimport"}, sorted(loaded)
