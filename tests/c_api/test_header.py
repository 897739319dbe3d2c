"""treadle/kernels.h compiles as C99 and as C++17, and agrees with its ctypes mirror."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.c_api import native
from treadle import _build

INCLUDE = Path(__file__).resolve().parents[2] / "kernels" / "include"
HEADER = (INCLUDE / "treadle" / "kernels.h").read_text()
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")


def compiler(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def ran(folder: Path, command: list[str], suffix: str, text: str) -> str:
    """Compiles a program with only the header and the library, and returns its output."""
    library = Path(_build.kernels_path())
    source, program = folder / f"program{suffix}", folder / "program"
    source.write_text(text)
    link = [f"-I{INCLUDE}", str(source), str(library), f"-Wl,-rpath,{library.parent}"]
    built = subprocess.run(
        [*command, *STRICT, *link, "-o", str(program)], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def prints(c_type: str, fields: list[str]) -> list[str]:
    lines = [f'  printf("sizeof {c_type} %lu\\n", (unsigned long)sizeof({c_type}));']
    for field in fields:
        offset = f"(unsigned long)offsetof({c_type}, {field})"
        size = f"(unsigned long)sizeof((({c_type}*)0)->{field})"
        lines.append(f'  printf("{c_type}.{field} %lu %lu\\n", {offset}, {size});')
    return lines


def test_layout_and_constants_in_c99(tmp_path: Path) -> None:
    lines, expected = [], []
    for c_type, struct in native.STRUCTS.items():
        fields = [name for name, *_ in struct._fields_]
        lines += prints(c_type, fields)
        expected.append(f"sizeof {c_type} {ctypes.sizeof(struct)}")
        for name in fields:
            at = getattr(struct, name)
            expected.append(f"{c_type}.{name} {at.offset} {at.size}")
    for name, value in native.CONSTANTS.items():
        lines.append(f'  printf("{name} %ld\\n", (long)({name}));')
        expected.append(f"{name} {value}")
    lines.append('  printf("version %d\\n", treadle_kernels_version());')
    expected.append(f"version {native.VERSION}")
    body = "\n".join(lines)
    text = "#include <treadle/kernels.h>\n\nextern int printf(const char*, ...);\n\n"
    text += f"int main(void) {{\n{body}\n  return 0;\n}}\n"
    said = ran(tmp_path, [compiler("gcc"), "-std=c99"], ".c", text)
    assert said.splitlines() == expected


def test_mirror_has_every_struct_field_constant_and_function() -> None:
    structs = dict(re.findall(r"typedef struct \w+ \{(.*?)\n\} (\w+);", HEADER, re.S))
    assert {*structs.values()} == {*native.STRUCTS}
    for body, name in structs.items():
        plain = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
        fields = re.findall(r"(\w+)(?:\[3\])?(?=[;,])", plain)
        assert fields == [field for field, *_ in native.STRUCTS[name]._fields_], name
    plain = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
    constants = {*re.findall(r"\b(TREADLE_[A-Z0-9_]+)\b", plain)}
    assert constants - {"TREADLE_API", "TREADLE_KERNELS_H"} == {*native.CONSTANTS}
    declared = dict(re.findall(r"TREADLE_API [\w\s*]+?\b(treadle_\w+)\(([^;]*)\);", plain))
    assert {*declared} == {*native.FUNCTIONS, *native.OTHERS}
    for name, parameters in native.FUNCTIONS.items():
        assert re.findall(r"(\w+)(?=,|$)", declared[name]) == [*parameters], name


CPP = """#include <treadle/kernels.h>

#include <iostream>

int main() {
  float x[] = {1.0F, 2.0F};
  const int64_t sizes[] = {2};
  treadle_device device{};
  device.struct_size = sizeof(device);
  device.type = TREADLE_CPU;
  treadle_array array{sizeof(treadle_array), x, sizes, nullptr, 1, TREADLE_FLOAT32};
  const treadle_number three{3.0, 0, 0};
  if (treadle_scale(&device, &array, three, &array) != TREADLE_OK) return 1;
  std::cout << x[0] << " " << x[1];
  return treadle_scale(&device, nullptr, three, &array) == TREADLE_INVALID ? 0 : 2;
}
"""


def test_a_program_in_cpp17(tmp_path: Path) -> None:
    assert ran(tmp_path, [compiler("g++"), "-std=c++17"], ".cpp", CPP) == "3 6"


def test_info_is_json() -> None:
    info = json.loads(native.library().treadle_kernels_info())
    assert info["version"] == native.VERSION
    assert {*info} == {"version", "cuda", "archs", "sources", "compiler", "isa"}
    assert info["isa"] in ("portable", "avx2", "avx512") and info["sources"]


def test_the_library_needs_no_torch_and_no_python() -> None:
    tool = shutil.which("ldd")
    if tool is None:
        pytest.skip("needs ldd")
    needed = subprocess.run([tool, _build.kernels_path()], capture_output=True, text=True).stdout
    assert "libc.so" in needed
    names = re.sub(r"\(0x[0-9a-f]+\)", "", needed)  # addresses, whose digits may spell c10
    assert not re.search(r"torch|python|c10", names)
