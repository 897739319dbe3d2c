// The functions of kernels.h about the library as a whole and about recorded launches.
#include <string>

#include "kernels/c_api/status.h"
#include "kernels/common/cpu/isa.h"
#include "kernels/common/error.h"
#include "kernels/common/launches.h"
#include "treadle/kernels.h"

// The build defines TREADLE_KERNELS_SOURCES and, if it compiles CUDA, TREADLE_CUDA_VERSION and
// TREADLE_CUDA_ARCHS.
#ifndef TREADLE_CUDA_VERSION
#define TREADLE_CUDA_JSON "null"
#define TREADLE_CUDA_ARCHS ""
#else
#define TREADLE_CUDA_JSON "\"" TREADLE_CUDA_VERSION "\""
#endif

namespace treadle {
namespace {

std::string describe() {
  return "{\"version\": " + std::to_string(TREADLE_KERNELS_VERSION) +
         ", \"cuda\": " TREADLE_CUDA_JSON ", \"archs\": \"" TREADLE_CUDA_ARCHS
         "\", \"sources\": \"" TREADLE_KERNELS_SOURCES "\", \"compiler\": \"" __VERSION__
         "\", \"isa\": \"" +
         cpu::isa_name() + "\"}";
}

}  // namespace
}  // namespace treadle

using treadle::recorded_launches;

const char* treadle_error_text(void) { return treadle::error_text(); }

int treadle_kernels_version(void) { return TREADLE_KERNELS_VERSION; }

const char* treadle_kernels_info(void) {
  static const std::string text = treadle::describe();
  return text.c_str();
}

void treadle_record_launches(int on) { treadle::recording_launches() = on != 0; }

int64_t treadle_launch_count(void) { return static_cast<int64_t>(recorded_launches().size()); }

void treadle_clear_launches(void) { recorded_launches().clear(); }

int treadle_get_launch(int64_t index, treadle_launch* launch) {
  return treadle::guarded([&] {
    treadle::require_struct("launch", launch);
    const int64_t count = treadle_launch_count();
    treadle::require(index >= 0 && index < count, "index must be at least 0 and less than ", count,
                     ", the number of recorded launches, got ", index);
    const treadle::Launch& found = recorded_launches()[static_cast<size_t>(index)];
    const treadle::LaunchShape& shape = found.shape;
    *launch = {
        launch->struct_size, found.kernel.c_str(), {shape.grid_x, shape.grid_y, shape.grid_z},
        {shape.block, 1, 1}, shape.vector_width,   shape.elements_per_thread,
        found.registers,     found.blocks_per_sm,  found.shared_bytes,
        found.local_bytes,   found.occupancy,      found.family,
        found.algorithm,     found.reason};
  });
}
