"""Reports the requirements of a wheel, and refuses one that needs too much.

    python inspect_wheel.py WHEEL [GLIBC]

Both native files are read, because tools that build wheels check only the extension module.
"""

import re
import sys
import zipfile

MEGABYTES = 13
NATIVE = re.compile(r".*\.so|.*/scripts/rdzv")


def glibc(content: bytes) -> tuple[int, ...]:
    """Returns the newest version of glibc that the symbols of an ELF file need."""
    if content[:4] != b"\x7fELF":
        raise ValueError("this is no ELF file")
    found = re.findall(rb"\0GLIBC_([0-9.]+)(?=\0)", content)
    return max((tuple(int(part) for part in version.split(b".")) for version in found), default=(0,))


def text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def inspect(wheel: str, limit: tuple[int, ...]) -> list[str]:
    """Prints the requirements, and returns the findings."""
    findings = []
    with zipfile.ZipFile(wheel) as archive:
        native = [name for name in archive.namelist() if NATIVE.fullmatch(name)]
        if len(native) != 2:
            findings.append(f"there should be two native files, not {native}")
        for name in native:
            needs = glibc(archive.read(name))
            print(f"{name}: glibc {text(needs)}, {archive.getinfo(name).file_size / 1e6:.1f} MB")
            if needs > limit:
                findings.append(f"{name} needs glibc {text(needs)}, newer than {text(limit)}")
        if not any("LICENSE" in name for name in archive.namelist()):
            findings.append("there is no licence")
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        for line in archive.read(metadata).decode().splitlines():
            if line.startswith("Requires-Dist:") and "extra ==" not in line:
                findings.append(f"it depends on something: {line}")
    with open(wheel, "rb") as file:
        size = file.seek(0, 2) / 1e6
    print(f"{wheel}: {size:.1f} MB")
    if size > MEGABYTES:
        findings.append(f"it has {size:.1f} MB, more than {MEGABYTES}")
    return findings


if __name__ == "__main__":
    wheel, limit = sys.argv[1], (sys.argv + ["2.28"])[2]
    findings = inspect(wheel, tuple(map(int, limit.split("."))))
    for finding in findings:
        print(f"inspect_wheel: {finding}", file=sys.stderr)
    sys.exit(bool(findings))
