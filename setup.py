"""Builds treadle's binaries through tools/native, and leaves the rest to setuptools.

Static metadata is in pyproject.toml. This file contains what depends on torch: the binaries, and
the minor versions of torch ("torch minors") that a wheel requires. tools/wheel.py makes a release's
wheel, for several torch minors.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from tools.native import host  # noqa: E402
from tools.native.build import _commit, build  # noqa: E402

# Commands whose result works with only one torch minor. An sdist works with any.
FOR_ONE_TORCH = {"bdist_wheel", "dist_info", "editable_wheel", "install", "develop"}


class BuildBinaries(build_ext):
    """Builds the binaries with tools/native/build.py and ninja, without distutils' compilers."""

    def _package(self) -> Path:
        inplace = self.inplace or self.editable_mode
        return (ROOT / "python_pkg" if inplace else Path(self.build_lib).resolve()) / "treadle"

    def run(self) -> None:
        try:
            build(self._package(), self.distribution.get_version())
        except host.BuildError as error:
            raise SystemExit(f"treadle: {error}") from None

    def get_outputs(self) -> list[str]:
        package = self._package()
        libraries = [path for path in package.glob("lib/**/*") if path.is_file()]
        return [str(path) for path in [*libraries, *package.glob("_C.*.so")]]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class BuildPython(build_py):
    """Copies the package's files, and the headers of the C++ interface and of the kernels. Removes
    leftovers of earlier builds."""

    def run(self) -> None:
        if not self.editable_mode:
            package = Path(self.build_lib) / "treadle"
            shutil.rmtree(package, ignore_errors=True)
            for part in ("csrc", "kernels"):
                headers = ROOT / part / "include"
                shutil.copytree(headers, package / "include", dirs_exist_ok=True)
            # The headers with which a user's cell (treadle.Cell) is compiled.
            for header in sorted([*ROOT.glob("kernels/**/*.h"), *ROOT.glob("kernels/**/*.cuh")]):
                copy = package / "_formula/include" / header.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(header, copy)
        super().run()


class Wheel(bdist_wheel):
    """A wheel for several torch minors works with any Python, because treadle._C is optional in
    it."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if one_torch() else ("py3", "none", platform)


class Sdist(sdist):
    """Adds the commit, in the file COMMIT."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        commit = _commit()
        if commit:
            Path(base_dir, "COMMIT").write_text(commit + "\n")


def one_torch() -> bool:
    return "TREADLE_TORCHES" not in os.environ


def requirements() -> list[str]:
    if not FOR_ONE_TORCH & set(sys.argv):
        return ["torch>=2.11"]
    try:
        held = [host.torch_minor()] if one_torch() else [torch.minor for torch in host.Torch.all()]
    except host.BuildError as error:
        raise SystemExit(f"treadle: {error}") from None
    (major, first), (_, last) = min(held), max(held)
    if first == last:
        return [f"torch=={major}.{first}.*"]
    gaps = [f"!={major}.{m}.*" for m in range(first, last) if (major, m) not in held]
    return [",".join([f"torch>={major}.{first}", f"<{major}.{last + 1}", *gaps])]


setup(
    ext_modules=[Extension("treadle._C", ["csrc/bindings.cpp"])],
    cmdclass={
        "build_ext": BuildBinaries,
        "build_py": BuildPython,
        "bdist_wheel": Wheel,
        "sdist": Sdist,
    },
    install_requires=requirements(),
)
