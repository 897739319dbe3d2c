"""Writes the ninja file, with every object, every binary, and the flags of each.

- libtreadle_kernels.so: kernels/, without torch and Python. Made once for all torch versions.
- libtreadle.so: csrc/, the ops of one torch version. With CUDA it needs torch's CUDA libraries, so
  a wheel also contains a libtreadle.so for the same torch without CUDA. The two libraries share all
  objects of csrc/ except those of the folders named cuda.
- _C: the Python module in csrc/bindings.cpp, made once for each Python version.
- libtreadle_jax.so: kernels/jax/, the handlers of treadle.jax; only if JAX is installed.

One graph contains everything, so that all cores stay busy. A file is recompiled only if the file, a
header that it includes, or its command has changed. A CPU-only build and a CUDA build share all
objects that do not depend on CUDA.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from . import cuda, host, units
from .words import escape, from_env, quote, write_if_new

CXX_FLAGS = ["-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror=return-type"]
# --expt-relaxed-constexpr allows std::numeric_limits and the like in device code.
NVCC_FLAGS = ["-std=c++17", "--expt-relaxed-constexpr"]
# libstdc++ is linked by file name, because a linker that finds only libstdc++.a would otherwise
# copy this archive into the library. A process with two copies of libstdc++ crashes in iostreams,
# which format all error texts.
CXX_RUNTIME = "-l:libstdc++.so.6"

# With --no-undefined, a missing symbol is an error at link time, not when a user imports treadle.
LINK_FLAGS = ["-Wl,--no-undefined", "-Wl,--as-needed"]

PRECOMPILED = Path("csrc/precompiled.h")

RULES = """
rule cxx
  command = $cxx -MD -MF $out.d $flags -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = c++ $out
rule precompile
  command = $cxx -MD -MF $out.d $flags -x c++-header -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = c++ $out
rule nvcc
  command = $nvcc -MD -MF $out.d $flags -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = nvcc $out
rule link
  command = $cxx -shared -o $out $in $flags
  description = link $out
"""


@dataclass
class Graph:
    """The build of one set of binaries, in the folder `base`."""

    torch: host.Torch
    toolkit: cuda.Toolkit | cuda.Missing
    base: Path
    version: str
    pythons: list[host.Python] = field(default_factory=lambda: [host.Python.running()])
    also_cpu: bool = False  # whether to build a second libtreadle.so, without CUDA
    lines: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Each torch version has its own folder, so switching versions does not overwrite files."""
        return self.base / f"torch-{self.torch.version.replace('+', '-')}"

    @property
    def shared(self) -> Path:
        """The folder of the objects whose sources do not include torch."""
        return self.base / "any-torch"

    @property
    def backend(self) -> str:
        return "cuda" if isinstance(self.toolkit, cuda.Toolkit) else "cpu"

    @property
    def out(self) -> Path:
        return self.folder / self.backend

    @property
    def kernels(self) -> Path:
        return self.shared / self.backend / "libtreadle_kernels.so"

    @property
    def jax_handlers(self) -> Path:
        return self.kernels.with_name("libtreadle_jax.so")

    @property
    def library(self) -> Path:
        return self.out / "libtreadle.so"

    @property
    def cpu_library(self) -> Path:
        """The library without CUDA. Its file has the name of `library`, to which programs link."""
        return self.folder / "without-cuda" / self.library.name

    def module(self, python: host.Python) -> Path:
        return self.shared / self.backend / f"_C{python.suffix}"

    def write(self) -> Path:
        """Writes the ninja file if its text has changed, and returns its path."""
        self._begin()
        self._precompile()
        self._edge("link", self.kernels, self._objects_without_torch(), self._kernels_flags())
        host_objects = self._host_objects()
        self._link_library(self.library, host_objects, self.toolkit)
        if self.also_cpu:
            self._link_library(self.cpu_library, host_objects, cuda.TORCH_WITHOUT)
        self._modules()
        if include := host.jax_include():
            self._jax(include)
        return self._end(self.out / "build.ninja")

    def _link_library(
        self, library: Path, host_objects: list[Path], toolkit: cuda.Toolkit | cuda.Missing
    ) -> None:
        if isinstance(toolkit, cuda.Toolkit):
            others = self._cuda_objects(toolkit)
        else:
            others = self._missing_object(toolkit)
        flags, needs = self._library_flags(library, toolkit), escape(self.kernels)
        self._edge("link", library, [*host_objects, *others], flags, needs=needs)

    def write_kernels(self) -> Path:
        """Writes a ninja file that builds only the kernels' objects, which do not need torch."""
        self._begin()
        self._objects_without_torch()
        return self._end(self.kernels.with_name("kernels.ninja"))

    def _begin(self) -> None:
        self.lines = [f"builddir = {self.base}", f"cxx = {host.ccache()}{host.cxx()}", RULES]
        if isinstance(self.toolkit, cuda.Toolkit):
            self.lines.insert(2, f"nvcc = {host.ccache()}{quote(self.toolkit.nvcc)}")

    def _objects_without_torch(self) -> list[Path]:
        objects = self._cpu_objects() + self._c_api_objects()
        if isinstance(self.toolkit, cuda.Toolkit):
            objects += self._kernel_objects(self.toolkit)
        return objects

    def _end(self, path: Path) -> Path:
        text = "\n".join(self.lines) + "\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_if_new(path, text)
        return path

    def _edge(
        self, rule: str, out: Path, inputs: list[Path], flags: list[str], needs: str = ""
    ) -> Path:
        joined = " ".join(escape(path) for path in inputs) + (f" | {needs}" if needs else "")
        words = " ".join(quote(flag) for flag in flags).replace("$", "$$")
        self.lines.append(f"build {escape(out)}: {rule} {joined}\n  flags = {words}")
        return out

    def _shared_object(self, rule: str, source: Path, flags: list[str], tag: str = "") -> Path:
        generated = source.is_relative_to(self.shared)
        folder = source.parent if generated else self.shared / source.parent
        return self._edge(rule, folder / f"{source.name}{tag}.o", [source], flags)

    def _precompile(self) -> None:
        """Precompiles torch's headers for `_torch_object`. A compiler that cannot use the
        precompiled header reads the plain header, which is in the same folder."""
        header = self.folder / PRECOMPILED.name
        header.parent.mkdir(parents=True, exist_ok=True)
        write_if_new(header, f'#include "{PRECOMPILED}"\n')
        flags = [*self.own_flags(), *self.torch_flags()]
        self._edge("precompile", header.with_suffix(".h.gch"), [PRECOMPILED], flags)

    def _torch_object(self, source: Path, flags: list[str]) -> Path:
        header = self.folder / PRECOMPILED.name
        needs = escape(header.with_suffix(".h.gch"))
        out = self.folder / "csrc" / f"{source.name}.o"
        return self._edge("cxx", out, [source], ["-include", str(header), *flags], needs)

    def own_flags(self) -> list[str]:
        """The first flags of every C++ file in csrc/ that includes torch; `torch_flags` follow."""
        return [*CXX_FLAGS, "-I.", "-Icsrc", "-Icsrc/include", "-Ikernels/include"]

    def torch_flags(self) -> list[str]:
        """The flags of a file that includes torch, in addition to `own_flags`."""
        flags = ["-O2", f"-std=c++{self.torch.cxx_standard}"]
        # Without this, at::parallel_for, which is in a header, would be serial.
        flags.append("-fopenmp")
        flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(self.torch.cxx11_abi)}")
        # Torch's checks put __FILE__ into the binary. This flag removes the build machine's path.
        flags.append(f"-ffile-prefix-map={self.torch.root.parent}/=")
        for folder in self.torch.include_dirs:
            flags += ["-isystem", str(folder)]
        return [*flags, "-idirafter", "csrc/compat", *from_env("CXXFLAGS")]

    def kernel_host_flags(self) -> list[str]:
        """The flags of the C++ files in kernels/ that are not compiled for each instruction set."""
        flags = [*CXX_FLAGS, "-O2", "-std=c++17", "-I.", "-Ikernels/include"]
        return [*flags, *from_env("CXXFLAGS")]

    def cpu_flags(self, isa: str) -> list[str]:
        """The flags of the CPU kernels."""
        flags = ["-std=c++17", *host.CPU_FLAGS, *host.isas()[isa], f"-DTREADLE_ISA={isa}"]
        return [*CXX_FLAGS, "-I.", "-Ikernels/include", *flags, *from_env("CXXFLAGS")]

    def nvcc_flags(self, toolkit: cuda.Toolkit, source: Path | None = None) -> list[str]:
        """The flags of a source of CUDA kernels, or those for all architectures of the build."""
        flags = [*toolkit.optimization(), *NVCC_FLAGS, "-I.", *toolkit.gencode(source)]
        if os.environ.get("TREADLE_LINEINFO") == "1":
            # This is not the default, because line numbers double the library's size, and because
            # in PTX they contain paths of the build machine.
            flags.append("-lineinfo")
        flags += [f"-Xcompiler={','.join(['-fPIC', '-fvisibility=hidden', '-Wall'])}"]
        if int(toolkit.version.split(".")[0]) >= 13:
            # Compression makes the library ten times smaller. The drivers that CUDA 13 requires can
            # read compressed code.
            flags.append("--compress-mode=size")
        if os.environ.get("CXX"):
            flags += ["-ccbin", host.cxx()]
        return flags

    def _host_objects(self) -> list[Path]:
        return self._unit_objects([*self.own_flags(), *self.torch_flags()], cuda=False)

    def _unit_objects(self, flags: list[str], cuda: bool) -> list[Path]:
        folder = self.folder / "csrc"
        return [
            self._torch_object(units.write(f"{name}.cpp", files, folder), flags)
            for name, files in units.units().items()
            if name.endswith("-cuda") == cuda
        ]

    def _cpu_objects(self) -> list[Path]:
        """The CPU kernels, one object for each instruction set, and the code that chooses among
        them."""
        sources = sorted(Path("kernels").rglob("*.cpp"))
        objects = [
            self._shared_object("cxx", source, self.cpu_flags(isa), f".{isa}")
            for isa in host.isas()
            for source in sources
            if source.parent.name == "cpu"
        ]
        flags = self.kernel_host_flags()
        others = [s for s in sources if s.parent.name not in ("cpu", "c_api", "jax")]
        return objects + [self._shared_object("cxx", source, flags) for source in others]

    def _c_api_objects(self) -> list[Path]:
        """The objects of the functions in kernels.h. Given CUDA arrays, these functions call CUDA;
        in a build without CUDA, they return an error."""
        flags = [*self.kernel_host_flags(), f'-DTREADLE_KERNELS_SOURCES="{kernels_sources()}"']
        if isinstance(self.toolkit, cuda.Toolkit):
            flags.append(f'-DTREADLE_CUDA_VERSION="{self.toolkit.version}"')
            flags.append(f'-DTREADLE_CUDA_ARCHS="{" ".join(self.toolkit.archs)}"')
            flags += ["-isystem", str(self.toolkit.include_dir)]
        sources = sorted(Path("kernels/c_api").glob("*.cpp"))
        return [self._shared_object("cxx", s, flags, f".{self.backend}") for s in sources]

    def _cuda_objects(self, toolkit: cuda.Toolkit) -> list[Path]:
        flags = [*self.own_flags(), *self.torch_flags()]
        flags += ["-isystem", str(toolkit.include_dir)]
        for folder in self.torch.toolkit_dirs():
            # These folders contain headers that a small toolkit may lack, such as cuSPARSE's.
            flags += ["-idirafter", str(folder / "include")]
        return self._unit_objects(flags, cuda=True)

    def _kernel_objects(self, toolkit: cuda.Toolkit) -> list[Path]:
        sources = [s for s in sorted(Path("kernels").rglob("*.cu")) if toolkit.needs(s)]
        flags = {source: self.nvcc_flags(toolkit, source) for source in sources}
        instances = {s: flags.pop(s) for s in sources if s.parent.name == "instances"}
        if cuda.checking_level() == "max":
            instances = self._joined(instances)
        cells = sorted(Path("kernels/math/cells").glob("*.h"))
        return [self._shared_object("nvcc", source, own) for source, own in flags.items()] + [
            self._shared_object("nvcc", source, [*own, *cell_flags(cell)], f".{cell.stem}")
            for source, own in instances.items()
            for cell in cells
        ]

    def _joined(self, instances: dict[Path, list[str]]) -> dict[Path, list[str]]:
        """Sources that include several sources of instances/ with the same flags. A build that
        compiles everything then parses headers less often."""
        groups: dict[tuple[str, ...], list[Path]] = {}
        for source, flags in instances.items():
            family = next((name for name in ("cluster", "grid") if name in source.name), "others")
            groups.setdefault((family, *flags), []).append(source)
        folder = self.shared / next(iter(instances)).parent
        joined = {}
        for (_, *flags), files in groups.items():
            name = f"{files[0].stem}-and-{len(files) - 1}"
            joined[units.write(f"{name}.cu", files, folder)] = flags
        return joined

    def _missing_object(self, missing: cuda.Missing) -> list[Path]:
        """An object that registers, for every op, a CUDA kernel that raises. It is linked last,
        because the other objects define these ops."""
        source = Path("csrc/cuda_missing.cpp")
        if not source.exists():
            return []
        flags = [*self.own_flags(), *self.torch_flags()]
        flags.append(f'-DTREADLE_CUDA_REASON="{missing.reason}"')
        flags.append(f'-DTREADLE_CUDA_REMEDY="{missing.remedy}"')
        return [self._torch_object(source, flags)]

    def _kernels_flags(self) -> list[str]:
        flags = [*LINK_FLAGS, f"-Wl,-soname,{self.kernels.name}"]
        flags.append("-Wl,--version-script=tools/native/kernels.map")
        if isinstance(self.toolkit, cuda.Toolkit):
            # The static CUDA runtime looks for the driver only when it is first called, so a
            # machine without CUDA can load the library.
            flags += [str(self.toolkit.static_runtime(self.torch)), "-ldl", "-lrt"]
        return [*flags, CXX_RUNTIME, "-lpthread", *from_env("LDFLAGS")]

    def _library_flags(self, library: Path, toolkit: cuda.Toolkit | cuda.Missing) -> list[str]:
        # libgomp is linked by file name, so that the library uses the file that torch loads.
        libraries = [str(self.kernels), CXX_RUNTIME, "-lc10", "-ltorch_cpu", "-l:libgomp.so.1"]
        if isinstance(toolkit, cuda.Toolkit):
            libraries += ["-lc10_cuda", "-ltorch_cuda"]
            libraries += map(str, toolkit.libraries(self.torch))
        # The rpath is $ORIGIN/.. because, in the package, the library is in the folder of its torch
        # version, one level below libtreadle_kernels.so.
        start = [*LINK_FLAGS, f"-Wl,-soname,{library.name}", "-Wl,-rpath,$ORIGIN/.."]
        start.append("-Wl,--version-script=tools/native/local.map")
        return [*start, f"-L{self.torch.lib_dir}", *libraries, *from_env("LDFLAGS")]

    def _modules(self) -> None:
        source = Path("csrc/bindings.cpp")
        import pybind11

        for python in self.pythons:
            # bindings.cpp does not include torch.
            flags = self.kernel_host_flags()
            for folder in (pybind11.get_include(), python.include):
                # The headers of pybind11 and Python put __FILE__ into the binary. The second flag
                # removes the build machine's path.
                flags += ["-isystem", folder, f"-ffile-prefix-map={folder}/="]
            made = self._shared_object("cxx", source, flags, python.suffix.removesuffix(".so"))
            link = [CXX_RUNTIME, str(self.kernels), "-Wl,-rpath,$ORIGIN/lib", *from_env("LDFLAGS")]
            self._edge("link", self.module(python), [made], link, needs=escape(self.kernels))

    def _jax(self, include: Path) -> None:
        # XLA's asserts put __FILE__ into the binary, like torch's checks.
        flags = [f"-ffile-prefix-map={include.parent.parent}/=", "-isystem", str(include)]
        source = Path("kernels/jax/handlers.cpp")
        made = self._shared_object("cxx", source, [*self.kernel_host_flags(), *flags])
        link = [*LINK_FLAGS, f"-Wl,-soname,{self.jax_handlers.name}", "-Wl,-rpath,$ORIGIN"]
        link += ["-Wl,--version-script=tools/native/kernels.map", str(self.kernels), CXX_RUNTIME]
        flags = [*link, *from_env("LDFLAGS")]
        self._edge("link", self.jax_handlers, [made], flags, needs=escape(self.kernels))


def cell_flags(header: Path) -> list[str]:
    """Flags that select the cell for a source of kernels/recurrent/instances."""
    return [f"-DTREADLE_CELL={kind_of(header)}", f'-DTREADLE_CELL_HEADER="{header}"']


def kind_of(header: Path) -> str:
    """The type that a header of kernels/math/cells defines: RnnTanh for rnn_tanh.h."""
    return header.stem.title().replace("_", "")


def kernels_sources() -> str:
    """A hash of the headers through which csrc/ calls kernels/. The objects of both folders must be
    compiled with the same headers."""
    headers = sorted(Path("kernels").rglob("*.h"))
    return hashlib.sha256(b"".join(header.read_bytes() for header in headers)).hexdigest()[:16]
