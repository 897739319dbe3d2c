// Exports a C++ function of libtreadle_kernels.so to csrc/ as the symbol treadle_<name>, so that
// the library exports only `treadle_*`. It goes after a declaration's parameters. These functions
// are for libtreadle.so of the same build; what others may call is in include/treadle/kernels.h.
#pragma once

#define TREADLE_EXPORTED(name) __asm__("treadle_" #name) __attribute__((visibility("default")))
