"""A copy of the source tree that is built and tested separately, for mutants and for the skeleton
of an op, and the folder that stores the libraries of such copies."""

from __future__ import annotations

import filecmp
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.tables import Mutant

ROOT = Path(__file__).resolve().parents[2]
OBJECTS = "build/native"
TIMED_OUT = 124  # not an exit status of pytest


@dataclass(frozen=True)
class Copy:
    """A copy of the source tree, which may be changed."""

    folder: Path
    cuda: bool
    gpu: str  # for CUDA_VISIBLE_DEVICES
    for_checking: bool = True  # kernels compile fast and run slowly

    def refresh(self) -> None:
        """Makes the copy equal to the source tree. Unchanged files keep their modification times,
        so ninja does not compile them again."""
        if not self.folder.exists() and (ROOT / OBJECTS).exists():
            shutil.copytree(ROOT / OBJECTS, self.folder / OBJECTS)
        listed = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"]
        names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
        wanted = {name for name in names.split("\0") if name and (ROOT / name).is_file()}
        for name in wanted:
            self._lay(name)
        for path in self.folder.rglob("*"):
            name = path.relative_to(self.folder).as_posix()
            source = path.suffix in (".py", ".h", ".cpp", ".cu", ".cuh")
            if source and not name.startswith("build/") and name not in wanted:
                path.unlink()

    def take(self, built: Copy) -> None:
        """If this copy does not exist yet, makes it from a built one, with all objects and
        modification times."""
        if not self.folder.exists():
            shutil.copytree(built.folder, self.folder)

    def _lay(self, name: str) -> None:
        source, target = ROOT / name, self.folder / name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)  # keeps its modification time, so objects are newer
        elif not filecmp.cmp(source, target, shallow=False):
            shutil.copy(source, target)

    def restore(self, mutant: Mutant, built: Copy) -> None:
        """Restores the mutant's file and everything compiled from it, with modification times, so
        that ninja only compiles the next mutant's file."""
        library = built.folder / "python_pkg" / "treadle" / "lib"
        compiled = [*(built.folder / OBJECTS).rglob("*"), *library.rglob("*")]
        for source in [built.folder / mutant.file, *(path for path in compiled if path.is_file())]:
            target = self.folder / source.relative_to(built.folder)
            if not target.exists() or _stamp(source) != _stamp(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)

    def plant(self, mutant: Mutant) -> None:
        path = self.folder / mutant.file
        path.write_text(mutant.of(path.read_text()))

    def build(self) -> bool:
        command = [sys.executable, "-W", "ignore", "setup.py", "-q", "build_ext", "--inplace"]
        env = {
            **os.environ,
            "TREADLE_BUILD_DIR": OBJECTS,
            "TREADLE_CUDA": str(int(self.cuda)),
            "TREADLE_CHECK_BUILD": str(int(self.for_checking)),
        }
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True)
        if done.returncode:
            print(done.stdout[-3000:] + done.stderr[-3000:])
        return done.returncode == 0

    def test(
        self, arguments: Iterable[str], seconds: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs pytest. The exit status is TIMED_OUT if it took more than ``seconds``."""
        options = ["-x", "-q", "--tb=line", "-p", "no:cacheprovider"]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(self.folder / "python_pkg"), os.environ.get("PYTHONPATH")])
            ),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TREADLE_MUTANT": "1",
            "CUDA_VISIBLE_DEVICES": self.gpu,
        }
        command = [sys.executable, "-m", "pytest", *options, *arguments]
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # also ends a kernel that hangs
                return subprocess.CompletedProcess(command, TIMED_OUT, "too long", "")
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class Libraries:
    """The folder to which a run writes the libraries of mutants, or from which it reads them."""

    keep: Path | None = None
    take: Path | None = None

    def put(self, copy: Copy, name: str) -> bool:
        """Puts a mutant's libraries, or those of the unchanged tree, into the copy. Returns False
        if they do not compile."""
        package = copy.folder / "python_pkg" / "treadle"
        lib = package / "lib"
        if self.take is not None:
            for module in (ROOT / "python_pkg" / "treadle").glob("_C*"):  # the same for all mutants
                shutil.copy(module, package)
            shutil.copytree(self.take / name, lib, dirs_exist_ok=True)
            return True
        built = copy.build()
        if built and self.keep is not None:
            shutil.copytree(lib, self.keep / name, dirs_exist_ok=True)
        return built
