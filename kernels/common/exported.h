// Exports a C++ function of libtreadle_kernels.so to csrc/ as the symbol treadle_<name>, so that
// the library exports only `treadle_*`. Put the macro after a declaration's parameters. Only
// libtreadle.so of the same build may call these functions. The public functions are in
// include/treadle/kernels.h.
#pragma once

#define TREADLE_EXPORTED(name) __asm__("treadle_" #name) __attribute__((visibility("default")))
