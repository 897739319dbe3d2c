"""Writes the ninja file: every object, the two binaries, and the flags of each.

One graph for both binaries, so that all cores are busy to the end, and so that a file is compiled
again only when it, a header that it includes, or its command has changed. A CPU-only build shares
every object with the CUDA build except those that CUDA adds.
"""

from __future__ import annotations

import os
import shlex
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

from . import cuda, host

CXX_FLAGS = ["-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror=return-type"]
# nvcc has --expt-relaxed-constexpr for std::numeric_limits and the like in device code.
NVCC_FLAGS = ["-O3", "-std=c++17", "--expt-relaxed-constexpr", "-lineinfo"]

# By its file name: where a compiler comes with libstdc++.a alone, the linker would copy it into the
# library, and a second libstdc++ in the process crashes in iostreams, that is in every error text.
CXX_RUNTIME = "-l:libstdc++.so.6"

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
    """The build of one set of binaries below `base`."""

    torch: host.Torch
    toolkit: cuda.Toolkit | cuda.Missing
    base: Path
    version: str
    lines: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """A folder a torch version, so that two can be built in turn."""
        return self.base / f"torch-{self.torch.version.replace('+', '-')}"

    @property
    def shared(self) -> Path:
        """Objects that include nothing of torch: kernels, and the CPU's instruction sets."""
        return self.base / "any-torch"

    @property
    def out(self) -> Path:
        return self.folder / ("cuda" if isinstance(self.toolkit, cuda.Toolkit) else "cpu")

    @property
    def library(self) -> Path:
        return self.out / "libtreadle.so"

    @property
    def module(self) -> Path:
        return self.out / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"

    def write(self) -> Path:
        """The ninja file, written only where its text changed."""
        self.lines = [f"builddir = {self.base}", f"cxx = {host.cxx()}", RULES]
        if isinstance(self.toolkit, cuda.Toolkit):
            self.lines.insert(2, f"nvcc = {_quote(self.toolkit.nvcc)}")
        self._precompile()
        objects = self._host_objects() + self._cpu_objects()
        if isinstance(self.toolkit, cuda.Toolkit):
            objects += self._cuda_objects(self.toolkit)
        else:
            objects += self._missing_object(self.toolkit)
        self._edge("link", self.library, objects, self._library_flags())
        self._module()
        text = "\n".join(self.lines) + "\n"
        path = self.out / "build.ninja"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_if_new(path, text)
        return path

    def _edge(
        self, rule: str, out: Path, inputs: list[Path], flags: list[str], needs: str = ""
    ) -> Path:
        joined = " ".join(_escape(path) for path in inputs) + (f" | {needs}" if needs else "")
        words = " ".join(_quote(flag) for flag in flags).replace("$", "$$")
        self.lines.append(f"build {_escape(out)}: {rule} {joined}\n  flags = {words}")
        return out

    def _object(
        self, rule: str, source: Path, flags: list[str], tag: str = "", needs: str = ""
    ) -> Path:
        out = self.folder / source.parent / f"{source.name}{tag}.o"
        return self._edge(rule, out, [source], flags, needs)

    def _shared_object(self, rule: str, source: Path, flags: list[str], tag: str = "") -> Path:
        out = self.shared / source.parent / f"{source.name}{tag}.o"
        return self._edge(rule, out, [source], flags)

    def _precompile(self) -> None:
        """Torch's headers, for `_torch_object`. A compiler that cannot use what it has made here
        takes the header of that name, which stands beside it."""
        header = self.folder / PRECOMPILED.name
        header.parent.mkdir(parents=True, exist_ok=True)
        write_if_new(header, f'#include "{PRECOMPILED}"\n')
        flags = [*self.own_flags(), *self.torch_flags()]
        self._edge("precompile", header.with_suffix(".h.gch"), [PRECOMPILED], flags)

    def _torch_object(self, source: Path, flags: list[str]) -> Path:
        header = self.folder / PRECOMPILED.name
        needs = _escape(header.with_suffix(".h.gch"))
        return self._object("cxx", source, ["-include", str(header), *flags], needs=needs)

    def own_flags(self) -> list[str]:
        """What every C++ file of ours is compiled with."""
        return [*CXX_FLAGS, "-I.", "-Icsrc", "-Icsrc/include"]

    def torch_flags(self) -> list[str]:
        """What a file that includes torch is compiled with beside `own_flags`."""
        flags = ["-O2", f"-std=c++{self.torch.cxx_standard}"]
        # at::parallel_for is a header, and serial without it.
        flags.append("-fopenmp")
        flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(self.torch.cxx11_abi)}")
        # Torch's checks put __FILE__ into the binary: not the path of the machine that built it.
        flags.append(f"-ffile-prefix-map={self.torch.root.parent}/=")
        for folder in self.torch.include_dirs:
            flags += ["-isystem", str(folder)]
        return [*flags, "-idirafter", "csrc/compat", *_from_env("CXXFLAGS")]

    def cpu_flags(self, isa: str) -> list[str]:
        """What the torch-free CPU kernels are compiled with."""
        flags = ["-std=c++17", *host.CPU_FLAGS, *host.isas()[isa], f"-DTREADLE_ISA={isa}"]
        return [*self.own_flags(), *flags, *_from_env("CXXFLAGS")]

    def nvcc_flags(self, toolkit: cuda.Toolkit) -> list[str]:
        """What the kernels are compiled with."""
        flags = [*NVCC_FLAGS, "-I.", *toolkit.gencode()]
        flags += [f"-Xcompiler={','.join(['-fPIC', '-fvisibility=hidden', '-Wall'])}"]
        if int(toolkit.version.split(".")[0]) >= 13:
            # A tenth of the size; drivers of CUDA 13 can read it.
            flags.append("--compress-mode=size")
        if os.environ.get("CXX"):
            flags += ["-ccbin", host.cxx()]
        return flags

    def _host_objects(self) -> list[Path]:
        apart = {"bindings.cpp", "cuda_missing.cpp"}
        sources = [s for s in _host_sources("") if s.name not in apart]
        flags = [*self.own_flags(), *self.torch_flags()]
        return [self._torch_object(source, flags) for source in sources]

    def _cpu_objects(self) -> list[Path]:
        sources = _host_sources("cpu")
        return [
            self._shared_object("cxx", source, self.cpu_flags(isa), f".{isa}")
            for isa in host.isas()
            for source in sources
        ]

    def _cuda_objects(self, toolkit: cuda.Toolkit) -> list[Path]:
        flags = [*self.own_flags(), *self.torch_flags()]
        flags += ["-isystem", str(toolkit.include_dir)]
        for folder in self.torch.toolkit_dirs():
            # Headers of libraries that a small toolkit may lack (cusparse and the like).
            flags += ["-idirafter", str(folder / "include")]
        flags.append(f'-DTREADLE_CUDA_ARCHS="{" ".join(toolkit.archs)}"')
        objects = [self._torch_object(s, flags) for s in _host_sources("cuda")]
        kernels = sorted(Path("kernels").rglob("*.cu"))
        flags = self.nvcc_flags(toolkit)
        return objects + [self._shared_object("nvcc", s, flags) for s in kernels]

    def _missing_object(self, missing: cuda.Missing) -> list[Path]:
        """Last on the link line: it registers a kernel for every op that the others define."""
        source = Path("csrc/cuda_missing.cpp")
        if not source.exists():
            return []
        flags = [*self.own_flags(), *self.torch_flags()]
        flags.append(f'-DTREADLE_CUDA_REASON="{missing.reason}"')
        flags.append(f'-DTREADLE_CUDA_REMEDY="{missing.remedy}"')
        return [self._torch_object(source, flags)]

    def _library_flags(self) -> list[str]:
        # By its file name, so that the linker takes the runtime that torch brings and loads.
        libraries = [CXX_RUNTIME, "-lc10", "-ltorch_cpu", "-l:libgomp.so.1"]
        if isinstance(self.toolkit, cuda.Toolkit):
            libraries += ["-lc10_cuda", "-ltorch_cuda"]
            libraries += map(str, self.toolkit.libraries(self.torch))
        # --no-undefined: what is missing fails here and not at a user's import.
        start = ["-Wl,-soname,libtreadle.so", "-Wl,--no-undefined", "-Wl,--as-needed"]
        start.append("-Wl,--version-script=tools/native/local.map")
        return [*start, f"-L{self.torch.lib_dir}", *libraries, *_from_env("LDFLAGS")]

    def _module(self) -> None:
        source = Path("csrc/bindings.cpp")
        import pybind11

        flags = [*self.own_flags(), "-O1", f"-std=c++{self.torch.cxx_standard}"]
        flags += ["-isystem", pybind11.get_include()]
        flags += ["-isystem", sysconfig.get_path("include")]
        flags += _from_env("CXXFLAGS")
        # The Python version is in the name: another interpreter may build in the same folder.
        tag = f".{sysconfig.get_config_var('SOABI')}"
        made = self._object("cxx", source, flags, tag)
        # Torch is loaded before _C is: only libtreadle.so has to be found, and it lies beside.
        rpath = ["-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined"]
        link = [CXX_RUNTIME, str(self.library), *rpath]
        flags = [*link, *_from_env("LDFLAGS")]
        self._edge("link", self.module, [made], flags, needs=_escape(self.library))


def write_if_new(path: Path, text: str) -> None:
    """A file that has this text already keeps its time, and so what is made of it."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _host_sources(backend: str) -> list[Path]:
    """The C++ files of csrc below a folder `cpu`, below one `cuda`, or ("") below neither."""
    sources = sorted(Path("csrc").rglob("*.cpp"))
    folders = {"cpu", "cuda"} if backend == "" else {backend}
    return [s for s in sources if (backend == "") == folders.isdisjoint(s.parts[:-1])]


def _from_env(name: str) -> list[str]:
    return shlex.split(os.environ.get(name, ""))


def _quote(word: str | Path) -> str:
    return shlex.quote(str(word))


def _escape(path: Path) -> str:
    """A path as ninja wants it."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
