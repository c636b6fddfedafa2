"""Location of the native launcher that the wheel contains."""

import os
import sys


def find_rdzv_bin() -> str:
    """Returns the path of the native program ``rdzv``.

    Searches the script folders of this environment and of the user, and the folder of the interpreter. With
    ``pip install --target``, it also finds the folder ``bin`` beside the packages.

    Returns:
        str: path of the program.

    Raises:
        FileNotFoundError: no folder contains the program; the text names the folders.

    Example:
        >>> import subprocess, rdzv
        >>> subprocess.run([rdzv.find_rdzv_bin(), "--version"]).returncode
        0
    """
    import sysconfig

    folders = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    try:
        folders.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    except KeyError:
        pass
    # `pip install --target` puts scripts beside the packages.
    folders.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin"))
    folders = list(dict.fromkeys(folders))
    for folder in folders:
        program = os.path.join(folder, "rdzv")
        if os.path.isfile(program) and os.access(program, os.X_OK):
            return program
    raise FileNotFoundError(
        "cannot find the program rdzv in any of these folders: " + ", ".join(folders) + "; install the package again"
    )
